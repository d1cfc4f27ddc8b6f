"""The console in a real browser: with and without scripts, light and dark, wide and narrow, by keyboard; axe finds no serious fault.

Needs a Chromium on the machine and the package playwright; skipped with a reason where either is missing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.console import golden
from support.consoles import CHROMIUM, Served, Window, chromium

pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is on this machine; .ci/run installs Debian's"),
]

KILLED, CLEAN, WRECK, OFFSETS, MIXED, DIRTY = range(6)
STORES = (
    "4.9.3/b-kill9",
    "5.3.3/g-clean-small",
    "4.9.3/m-damaged/16-everything",
    "4.9.3/f-broker-offsets",
    "3.10.8/f-mixed-features",
    "3.10.8/b-dirty-journal",
)
PAGES = (
    "/",
    "/jobs",
    "/basket",
    "/nowhere",
    "/stores/0",
    "/stores/2",
    "/stores/0/topics",
    "/stores/3/groups",
    "/stores/0/messages",
    "/stores/0/messages?topic=TopicTest",
    "/stores/2/messages?source=log",
    "/stores/0/key?topic=TopicTest&key=K20",
    "/stores/0/explain?topic=TopicTest&key=K20",
    "/stores/0/explain?topic=none&key=none",
    "/stores/0/id",
    "/stores/3/message?offset=0&record=0",
    "/stores/3/message?offset=0&body=hex",
    "/stores/0/usage",
    "/stores/2/verify",
    "/stores/2/files",
    "/stores/2/file?name=commitlog/00000000000000000000",
    "/stores/4",
    "/stores/4/queues",
    "/stores/4/queue?vhost=/&queue=prio.q",
    "/stores/4/message?vhost=/&queue=lazy.mixed&seq=0",
    "/stores/4/usage",
    "/stores/5/verify",
)
NARROW = tuple(page for page in PAGES if page.count("?") == 0 or "explain" in page or "prio" in page or "offset=0&record" in page)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    target = tmp_path_factory.mktemp("replayed")
    made = Served(*map(golden, STORES), allow_writes=True, targets=(str(target),))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def window(browser: Any, served: Served) -> Iterator[Any]:
    opened: list[Window] = []

    def make(**options: Any) -> Window:
        opened.append(Window(browser, served, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.context.close()


@pytest.fixture(scope="module", autouse=True)
def checked(served: Served, browser: Any) -> None:
    """Run verify and usage of every displayed store through the pages, as a user does."""
    first = Window(browser, served)
    for path in ("/stores/2/verify", "/stores/5/verify", "/stores/0/usage", "/stores/4/usage"):
        first.open(path).click("main form button")
        first.page.wait_for_selector("text=/again/")
    assert not first.complaints
    first.context.close()


def test_no_page_has_a_serious_accessibility_fault_or_a_refused_script(window: Any) -> None:
    wide = window(viewport={"width": 1280, "height": 900})
    for path in PAGES:
        wide.open(path)
        assert not wide.faults(), path
        assert not wide.overflows, path
        assert [each for each in wide.complaints if "404" not in each] == [], path


def test_pages_fit_a_narrow_window_and_are_readable_in_the_dark(window: Any) -> None:
    narrow = window(viewport={"width": 360, "height": 740}, color_scheme="dark")
    for path in NARROW:
        narrow.open(path)
        assert not narrow.overflows, path
        assert not narrow.faults(), path


def test_dark_and_light_follow_the_reader(window: Any) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page = window(color_scheme=scheme).open("/")
        colours[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = {scheme: sum(json.loads(f"[{text[4:-1]}]")) for scheme, text in colours.items()}
    assert brightness["dark"] < 150 < 600 < brightness["light"]


def read_messages(page: Any) -> None:
    """Go from the first page to a message, by topic, by key and by id, and to the reason why a key is not found."""
    page.goto("/")
    page.click("main >> text=/b-kill9/")
    page.click("nav.tabs >> text=Messages")
    page.fill("input[name=topic]", "TopicTest")
    page.fill("input[name=since]", "2022-01-01T00:00:05")
    page.click("main form.filters button >> nth=0")
    assert "newest first" in page.inner_text("p.count")
    page.click("tbody a >> nth=0")
    assert page.inner_text("h1").startswith("Message at")
    page.click("text=Bytes >> nth=0")
    assert "00000000" in page.inner_text("pre >> nth=0")
    message_id = page.inner_text("dt:has-text('Message id') + dd")
    page.click("nav.tabs >> text=Messages")
    page.click("nav.subtabs >> text=Message id")
    page.fill("input[name=id]", message_id)
    page.click("main form.filters button")
    assert message_id in page.inner_text("dl.facts")
    page.goto("/stores/0/key")
    page.fill("input[name=topic]", "TopicTest")
    page.fill("input[name=key]", "K20")
    page.click("main form.filters button >> text=Find")
    assert "with this key" in page.inner_text("p.count")
    page.click("main form.filters button >> text=Explain")
    page.wait_for_selector("text=How the index was searched")
    assert "after-index-end" in page.inner_text("main")


def read_queues(page: Any) -> None:
    """Go from the queues of RabbitMQ to a message and its bytes."""
    page.goto("/stores/4/queues")
    page.click("tbody a >> text=lazy.mixed")
    page.click("tbody a >> nth=0")
    assert page.inner_text("h1") == "Message 0 of lazy.mixed"
    assert "would recover" in page.inner_text("dl.facts")
    page.click("text=journal.jif >> nth=0")
    assert "journal.jif" in page.inner_text("h1")


def read_damage(page: Any) -> None:
    """Open the damage map of a store and of one of its files."""
    page.goto("/stores/2/verify")
    assert page.locator("svg.map .damage").count() > 5
    page.click("h3 a >> nth=0")
    assert "finding" in page.get_attribute("svg.map", "aria-label")
    page.click("text=/^bytes at/ >> nth=0")
    assert page.locator("svg.map .here").count() == 1


def use_basket(page: Any, downloads: Path) -> None:
    """Put messages of both brokers into the basket, export them as a file, and replay them into another store."""
    page.goto("/stores/0/messages?topic=TopicTest")
    page.check("tbody input[type=checkbox] >> nth=0")
    page.check("tbody input[type=checkbox] >> nth=2")
    page.click("text=Add selected to the basket")
    assert page.inner_text("#basket-count") == "2"
    page.goto("/stores/4/queue?vhost=/&queue=ttl.q")
    page.click("text=/^Add all/")
    assert page.inner_text("#basket-count") == "14"
    page.goto("/basket")
    for family, rows in (("rocketmq", 2), ("rabbitmq", 12)):
        with page.expect_download() as waiting:
            page.click(f"a[href*='{family}'] >> text=JSON lines")
        waiting.value.save_as(downloads / family)
        assert len((downloads / family).read_text().splitlines()) == rows
    page.click("text=Preview the replay")
    assert page.inner_text("h1") == "Replay 14 messages?"
    page.check("input[name=sure]")
    page.click("button >> text=Replay")
    page.wait_for_selector("text=Stored")
    assert "14 messages" in page.inner_text("dl.facts")
    assert page.inner_text("#basket-count") == "0"


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
@pytest.mark.parametrize("width", [1280, 360])
def test_everything_can_be_done_with_and_without_scripts(window: Any, tmp_path: Path, scripts: bool, width: int) -> None:
    opened = window(java_script_enabled=scripts, viewport={"width": width, "height": 800})
    read_messages(opened.page)
    read_queues(opened.page)
    read_damage(opened.page)
    use_basket(opened.page, tmp_path)
    assert not opened.complaints


def test_a_table_is_sorted_filtered_and_paged_where_it_stands(window: Any) -> None:
    page = window(viewport={"width": 1280, "height": 900}).open("/stores/0/messages?topic=TopicTest")
    rows = page.locator("tbody tr:visible")
    assert rows.count() == 50
    total = page.locator("tbody tr").count()
    assert page.inner_text(".tools [role=status]") == f"rows 1 to 50 of {total}"
    assert not page.is_visible("text=Previous rows")
    page.click("text=Next rows")
    assert page.inner_text(".tools [role=status]").startswith("rows 51 to 100 of")

    def column(name: str) -> list[str]:
        place = page.locator("thead th").all_inner_texts().index(name) + 1
        return page.locator(f"tbody tr:visible td:nth-child({place})").all_inner_texts()

    def offsets() -> list[int]:
        return [int(cell.replace(",", "")) for cell in column("Offset")]

    as_listed = rows.all_inner_texts()
    page.click("button.sort >> text=Offset")
    assert page.get_attribute("thead th:has-text('Offset')", "aria-sort") == "descending"
    assert offsets() == sorted(offsets(), reverse=True)
    assert max(offsets()) > 9 > 0  # numbers are not compared as text
    page.click("button.sort >> text=Offset")
    assert offsets() == sorted(offsets())
    page.click("button.sort >> text=Offset")
    assert page.get_attribute("thead th:has-text('Offset')", "aria-sort") is None
    page.click("text=Next rows")
    assert rows.all_inner_texts() == as_listed

    tag = page.locator("tbody tr >> nth=0").locator("td.code").inner_text()
    page.fill("input[type=search]", tag.upper())
    assert 1 <= rows.count() < 50
    assert all(tag in cell for cell in page.locator("tbody tr:visible").all_inner_texts())
    page.check("tbody tr:visible input[type=checkbox]")
    page.press("input[type=search]", "Enter")
    assert "topic=TopicTest" in page.url  # the form around the table is not sent
    seen = rows.count()
    before = int(page.inner_text("#basket-count"))
    page.click("text=/^Add all/")
    assert int(page.inner_text("#basket-count")) == before + seen  # what the filter hides is not "shown"
    page.goto("/basket")
    page.click("text=Empty the basket")


def test_on_a_phone_a_row_is_a_card_and_the_rows_are_sorted_by_a_choice(window: Any) -> None:
    page = window(viewport={"width": 390, "height": 800}).open("/stores/0/messages?topic=TopicTest")
    assert page.locator("tbody tr:visible").count() == 20
    assert not page.is_visible("thead")
    assert page.evaluate("getComputedStyle(document.querySelector('tbody td.time'), '::before').content") == '"Stored: "'
    page.select_option(".tools select", label="Bytes")
    place = [each.strip() for each in page.locator("thead th").all_text_contents()].index("Bytes") + 1
    sizes = [int(each.replace(",", "")) for each in page.locator(f"tbody tr:visible td:nth-child({place})").all_inner_texts()]
    assert sizes == sorted(sizes, reverse=True)


def test_on_a_phone_a_card_leaves_out_what_is_empty(window: Any) -> None:
    page = window(viewport={"width": 390, "height": 800}).open("/stores/4/queues")
    empty = page.locator("tbody td.n:empty")
    assert empty.count() > 3
    assert not any(empty.nth(number).is_visible() for number in range(empty.count()))


def test_a_message_is_reached_by_the_keyboard_alone(window: Any) -> None:
    page = window().open("/stores/0/messages?topic=TopicTest")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "topic"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('tbody a')"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Location on disk")


def test_a_job_shows_its_progress_and_is_cancelled_from_the_page(window: Any, served: Served) -> None:
    go = threading.Event()

    def slow(progress: Any) -> None:
        done = 0
        while not go.wait(0.02):
            done = min(done + 1, 99)
            progress(done, 100)

    job = served.jobs.start("test", "A slow job", slow, unit="messages")
    page = window().open(f"/jobs/{job.id}")
    first = float(page.get_attribute("progress", "value"))
    for _ in range(100):
        if float(page.get_attribute("progress", "value")) > first:
            break
        page.wait_for_timeout(100)
    assert float(page.get_attribute("progress", "value")) > first
    page.click("text=Cancel")
    page.wait_for_selector("text=cancelled")
    assert job.settled.wait(10)
    go.set()
