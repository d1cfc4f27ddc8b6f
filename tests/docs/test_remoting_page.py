"""The page on the remoting protocol matches the broker: its tables are those of the broker, and its required fields are required."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import access_table
from support.broker import VERSIONS, BrokerThread, Wire

from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.headers import ANY, FIELDS
from mqstore.broker.server import handler_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "formats" / "rocketmq-remoting.md"
TEXT = PAGE.read_text(encoding="utf-8")

_ROW = re.compile(r"^\| (← )?(\d+) \| ([A-Z][A-Z0-9_]*) \|([^|]*)\|(.*)$", re.MULTILINE)
_CITED = re.compile(r"rocketmq-remoting\.md,? (?:sections? )?((?:\d+(?:\.\d+)?(?:, | and | to )?)+)")


def section(title: str) -> str:
    """The text of a section, without those below it."""
    found = re.search(rf"^#+ {re.escape(title)}.*?\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


REQUESTS = [row for title in ("2.2 ", "3.1 ") for row in _ROW.findall(section(title))]
SERVED = {int(code): fields for arrow, code, _, fields, _ in REQUESTS if not arrow}
SECTIONS = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", TEXT, re.MULTILINE))


def test_the_examples_of_the_page_are_true() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 25
    assert outcome.failed == 0


def test_the_requests_of_the_page_are_those_that_are_served() -> None:
    served = {code: RequestCode(code).name for code in handler_table()}
    assert {int(code): name for arrow, code, name, *_ in REQUESTS if not arrow} == served
    assert len(SERVED) == sum(1 for arrow, *_ in REQUESTS if not arrow)  # each once


def test_the_table_of_what_requests_need_is_that_of_the_broker() -> None:
    assert access_table.page(TEXT) == TEXT
    assert TEXT.count(access_table.BEGIN) == TEXT.count(access_table.END) == 1
    assert len(re.findall(r"^\| \d+ \| [A-Z_0-9]+ \| [^|]+ \|", access_table.table(), re.MULTILINE)) == len(handler_table())


def test_the_fields_of_the_page_are_among_those_that_accounts_may_send() -> None:
    for code, fields in SERVED.items():
        named = re.split(r"; ?body|^ ?body", fields.partition("|")[0])[0]
        names = {part.split()[0].rstrip("!") for part in named.split(",") if part.strip() and not part.strip().startswith("as ")}
        assert names <= FIELDS[code], code
    for name in ANY:
        assert f"`{name}`" in section("10.3 ")


def test_the_other_codes_are_requests_of_the_broker_to_clients() -> None:
    asked = {int(code): name for arrow, code, name, *_ in REQUESTS if arrow}
    assert all(RequestCode(code).name == name for code, name in asked.items())
    assert {*asked, *handler_table()} == {code.value for code in RequestCode}


def test_the_response_codes_of_the_page_are_those_of_the_broker() -> None:
    listed = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", section("1.8 "), re.MULTILINE)
    assert {int(code): name for code, name in listed} == {code.value: code.name for code in ResponseCode}


def test_the_checklist_has_every_number_once() -> None:
    numbers = re.findall(r"^(\d+)\. ", TEXT[TEXT.index("## 8. ") : TEXT.index("## 9. ")], re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 101))


def test_every_citation_of_the_page_names_a_section_that_it_has() -> None:
    missing, cited = [], 0
    for source in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        if source == Path(__file__):
            continue
        text = re.sub(r"\s*\n\s*#?\s*", " ", source.read_text(encoding="utf-8"))
        for numbers in _CITED.findall(text):
            cited += 1
            missing.extend(f"{source.name}: {number}" for number in re.findall(r"\d+(?:\.\d+)?", numbers) if number not in SECTIONS)
    assert not missing
    assert cited > 25


def test_every_request_leads_to_a_section_of_the_page() -> None:
    rows = _ROW.findall(section("3.1 "))
    assert {row[-1].rstrip(" |").rpartition("| ")[2] for row in rows} <= SECTIONS


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    place = tmp_path_factory.mktemp("store") / "store"
    with BrokerThread(place, version="4.9.3") as running, Wire(running.address, VERSIONS["4.9.3"]) as connection:
        connection.make_topic("1")
        yield connection


def required(fields: str) -> list[str]:
    return re.findall(r"(\w+)!", fields)


@pytest.mark.parametrize("code", [code for code, fields in SERVED.items() if required(fields)])
def test_a_field_marked_as_required_is_required(wire: Wire, code: int) -> None:
    fields = dict.fromkeys(required(SERVED[code]), "1")
    for name in fields:
        found = wire.call(code, {other: value for other, value in fields.items() if other != name})
        nameless = code in (100, 101, 102) and name != "value"
        assert found.remark == ("namespace or key is null" if nameless else f"the custom field <{name}> is null")
        assert found.code == ResponseCode.SYSTEM_ERROR
