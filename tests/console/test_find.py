"""The first field of the console: one text, looked for in all stores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from support import golden as goldenkit
from support.console import Visitor, golden, links, visiting, words

from mqstore.console.pages.find import SHOWN

STORES = ("4.9.3/f-broker-offsets", "3.10.8/f-mixed-features", "4.9.3/m-damaged/16-everything")


@pytest.fixture(scope="module")
def visitor() -> Iterator[Visitor]:
    with visiting(*map(golden, STORES), "/no/such/store") as found:
        yield found


def found(visitor: Visitor, text: str) -> Any:
    """Return the page of a search when all stores are searched; it waits a little each time it is loaded."""
    while True:
        page = visitor.get("/find", params={"text": text})
        if 'id="cancel"' not in page.text:
            return page


def test_the_first_page_begins_with_the_field(visitor: Visitor) -> None:
    page = visitor.get("/").text
    assert page.index('action="/find"') < page.index('class="cards')


def test_hits_are_those_of_the_command_and_link_to_their_messages(visitor: Visitor) -> None:
    page = found(visitor, "order12")
    rows = goldenkit.run_cli("find", golden(STORES[0]), "order12", "-o", "jsonl").rows
    assert f"{len(rows)} messages with this text" in words(page)
    for row in rows:
        link = f"/stores/0/message?offset={row['physical_offset']}"
        assert link in links(page)
    assert visitor.get(f"/stores/0/message?offset={rows[0]['physical_offset']}").status_code == 200
    assert "s62_everything offset" in words(page)


@pytest.mark.parametrize("text", ["order12", "OrderID", "dead-2", "order-", "TagC"])
def test_each_store_has_the_hits_of_the_command_with_their_states(visitor: Visitor, text: str) -> None:
    sections = found(visitor, text).text.split("<h2>")[1:]
    numbers = [int(re.findall(r'href="/stores/(\d+)"', section)[0]) for section in sections]
    hits = [len(goldenkit.run_cli("find", golden(STORES[number]), text, "-o", "jsonl").rows) for number in numbers if number < len(STORES)]
    assert hits == [*filter(None, hits), *(0 for each in hits if not each)]  # the stores that have the text come first
    for section, number in zip(sections, numbers, strict=True):
        if number == len(STORES):
            continue
        rows = goldenkit.run_cli("find", golden(STORES[number]), text, "-o", "jsonl").rows
        cells = [re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr><td>.*?</tr>", section, re.DOTALL)]
        assert [each[4] for each in cells] == [row["state"] for row in rows[:SHOWN]]
        for each, row in zip(cells, rows, strict=False):
            assert each[2].startswith(", ".join(row["matched_in"]))
            assert row["verdict"] in each[3]
            assert [group["group"] for group in row["consumed_by"]] == re.findall(r"([\w-]+) <small>offset", each[5])


def test_an_acknowledged_message_of_rabbitmq_is_shown_as_such(visitor: Visitor) -> None:
    page = found(visitor, "dead-2")
    assert "acknowledged" in words(page)
    for link in links(page):
        if "/stores/1/message" in link:
            assert visitor.get(link).status_code == 200


def test_what_cannot_be_searched_is_said(visitor: Visitor) -> None:
    text = words(found(visitor, "no-such-order"))
    assert text.count("Not found") == 3
    assert "whether a message that was there had the text is unknown" in text
    assert "cannot be searched" in text
    assert "does not exist" in text


def test_a_text_from_outside_is_shown_as_text(visitor: Visitor) -> None:
    page = visitor.get("/find", params={"text": "<script>alert(1)</script>"}).text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert visitor.get("/find?text=x").status_code == 400
