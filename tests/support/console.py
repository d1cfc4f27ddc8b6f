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
    """One visitor with the cookies of one session, who follows redirects."""

    @property
    def console(self) -> Console:
        found: Console = self.app.state.console  # type: ignore[attr-defined]
        return found

    def csrf(self, page: str = "/basket") -> str:
        """Return the form token of this session."""
        self.get(page)
        (session,) = [each for each in self.console.sessions._sessions.values() if each.id in self.cookies.values()]
        return session.csrf

    def submit(self, path: str, **fields: Any) -> Any:
        """Submit a form of this session."""
        return self.post(path, data={"csrf": self.csrf(), **fields})


@contextmanager
def visiting(*stores: object, **settings: Any) -> Iterator[Visitor]:
    """Yield a visitor of a console over these stores."""
    app = create_app(Settings(tuple(str(store) for store in stores), **settings))
    with Visitor(app, base_url=ADDRESS) as visitor:
        yield visitor


def golden(name: str) -> str:
    """Return the directory of a golden store, by an id such as `4.9.3/b-kill9`."""
    return str(goldenkit.opened(goldenkit.case_named(name)))


def words(page: Any) -> str:
    """Return the text of a page, without its markup."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page.text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def tables(page: Any) -> dict[str, list[dict[str, str]]]:
    """Return the tables of a page by caption; each row has the text of its cells by the heading of their columns."""
    found: dict[str, list[dict[str, str]]] = {}
    for table in re.findall(r"<table\b.*?</table>", page.text, re.DOTALL):
        caption = re.search(r"<caption[^>]*>(.*?)</caption>", table, re.DOTALL)
        rows = [[_text(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in table.split("</tr>")]
        head, *body = [row for row in rows if row]
        found[_text(caption[1]) if caption else ""] = [dict(zip(head, row, strict=True)) for row in body]
    return found


def _text(markup: str) -> str:
    without = re.sub(r"<svg\b.*?</svg>", " ", markup, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", without)).split())


def links(page: Any) -> list[str]:
    """Return the targets of the links of a page."""
    return [html.unescape(found) for found in re.findall(r'<a [^>]*?href="([^"#]+)', page.text)]


def counted(page: Any) -> str:
    """Return the line that shows how many of how many rows are on the page."""
    found = re.search(r'<p class="count"[^>]*>(.*?)</p>', page.text, re.DOTALL)
    assert found is not None, words(page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found[1])).split())
