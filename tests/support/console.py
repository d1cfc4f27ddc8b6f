"""Consoles over golden stores, as a client without a browser sees them.

with visiting(store) as visitor:
    page = visitor.get("/stores/0")
    visitor.submit("/basket/add", place="0:512")      # a form with its token
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support import golden as goldenkit

pytest.importorskip("starlette", reason="the extra console is not installed")

from starlette.testclient import TestClient

from mqstore.console.app import create_app
from mqstore.console.page import Console
from mqstore.console.settings import Settings

ADDRESS = "http://127.0.0.1:8082"


class Visitor(TestClient):
    """One visitor with the cookies of one session; redirects are followed."""

    @property
    def console(self) -> Console:
        found: Console = self.app.state.console  # type: ignore[attr-defined]
        return found

    def csrf(self, page: str = "/basket") -> str:
        """The form token of this session."""
        self.get(page)
        (session,) = [each for each in self.console.sessions._sessions.values() if each.id in self.cookies.values()]
        return session.csrf

    def submit(self, path: str, **fields: Any) -> Any:
        """A form of this session."""
        return self.post(path, data={"csrf": self.csrf(), **fields})


@contextmanager
def visiting(*stores: object, **settings: Any) -> Iterator[Visitor]:
    """A console over these stores, and a visitor."""
    app = create_app(Settings(tuple(str(store) for store in stores), **settings))
    with Visitor(app, base_url=ADDRESS) as visitor:
        yield visitor


def golden(name: str) -> str:
    """The directory of a golden store, by an id such as `4.9.3/b-kill9`."""
    return str(goldenkit.opened(goldenkit.case_named(name)))


def words(page: Any) -> str:
    """What a page says, without its markup."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page.text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def links(page: Any) -> list[str]:
    """Where the links of a page lead."""
    return [html.unescape(found) for found in re.findall(r'<a [^>]*?href="([^"#]+)', page.text)]


def counted(page: Any) -> str:
    """The line that says how much of how many is shown."""
    found = re.search(r'<p class="count"[^>]*>(.*?)</p>', page.text, re.DOTALL)
    assert found is not None, words(page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found[1])).split())
