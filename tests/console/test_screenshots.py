"""Screenshots of every page of five stores, wide and narrow, light and dark: no page is empty, torn, or wider than its window.

They are kept in `build/screenshots`. Needs a Chromium on the machine and the package playwright.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import quorum, streams
from support.console import golden
from support.consoles import CHROMIUM, Served, Window, chromium

pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is on this machine; .ci/run installs Debian's"),
]

TARGET = Path(__file__).parent.parent.parent / "build" / "screenshots"
STORES = ("4.9.3/f-broker-offsets", "4.9.3/m-damaged/16-everything", "3.10.8/f-mixed-features")
ROCKETMQ = ("", "/topics", "/messages", "/messages?source=log", "/groups", "/usage", "/files", "/verify", "/id", "/message?offset=0")
PAGES = (
    "/",
    "/jobs",
    "/basket",
    "/find?text=K20",
    "/zone",
    *(f"/stores/{store}{page}" for store in (0, 1) for page in ROCKETMQ),
    "/stores/0/messages?topic=s62_audit-log",
    "/stores/0/key?topic=s62_audit-log&key=K20",
    "/stores/0/explain?topic=s62_audit-log&key=K20",
    "/stores/1/file?name=commitlog/00000000000000000000",
    *(f"/stores/2{page}" for page in ("", "/queues", "/messages", "/usage", "/files", "/verify")),
    "/stores/2/queue?vhost=/&queue=prio.q",
    "/stores/2/message?vhost=/&queue=lazy.mixed&seq=0",
    *(f"/stores/{store}{page}" for store in (3, 4) for page in ("", "/queues", "/messages", "/usage", "/files", "/verify")),
    "/stores/3/queue?vhost=/&queue=returns",
    "/stores/3/message?vhost=/&queue=returns&index=5",
    "/stores/4/queue?vhost=/&queue=s.small",
)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    others = quorum.node("4.3.6/a-quorum-mix-kill9"), streams.node("4.3.6-killed")
    made = Served(*map(golden, STORES), *map(str, others))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_every_page_of_five_stores_is_drawn_whole(browser: Any, served: Served, width: int, scheme: str) -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    window = Window(browser, served, viewport={"width": width, "height": 900}, color_scheme=scheme)
    for store in range(5):  # what the first page runs by itself
        window.open(f"/stores/{store}")
        served.settle()
    for path in PAGES:
        page = window.page
        assert page.goto(path).ok, path
        name = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-") or "home"
        page.screenshot(path=TARGET / f"{name}-{width}.png", full_page=True)
        assert not window.overflows, path
        assert page.inner_text("h1"), path
        drawn = "[...document.querySelectorAll('main svg')].filter((each) => each.checkVisibility())"
        drawn += ".every((each) => each.getBoundingClientRect().height > 5)"
        assert page.evaluate(drawn), path
    assert [each for each in window.complaints if "404" not in each] == []
    window.context.close()
