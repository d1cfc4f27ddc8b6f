"""Tables on a terminal of 40 to 120 columns: no line is too wide, and no topic, queue, group or key is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli
from support.stores import Store, message

from mqstore.rabbitmq import QueueStore
from mqstore.table.formatting import display_width

TOPICS = ("payments-settlement-eu-central-1-production-events", "%RETRY%billing-reconciliation-consumer-group", "订单-东京", "orders")
KEYS = ("order-2026-11-23-000017-eu-central-1", "K1", "customer:00000001 tracking-1Z999AA10000000001", "FD" + "0" * 54)
VHOST = "payments-production-eu-central-1"
QUEUES = ("settlement.confirmation.events.eu-central-1.production", "заказы.очередь.производственная", "late")
WIDTHS = (40, 60, 80, 120)


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Store(tmp_path_factory.mktemp("long") / "store")
    made.put(*(message(topic, keys=key, tags="settlement-confirmed") for topic in TOPICS for key in KEYS))
    return made.write()


@pytest.fixture(scope="module")
def long_queues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("queues") / "msg_stores"
    with QueueStore.open(root, VHOST) as store:
        for queue in QUEUES:
            store.declare(queue)
            for number in range(3):
                store.publish(queue, b"x" * 6000 * number, routing_keys=(b"order.confirmed.by.clearing-house.v1", b"audit"))
    return root


def cells(text: str) -> Iterator[list[str]]:
    """Yield the cells of each table of text, by column: the lines of a cell are joined, and so are those of one column."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r" *─+(  ─+)*", line):
            spans = [found.span() for found in re.finditer("─+", line)]
            columns = [""] * len(spans)
            for row in lines[number + 1 :]:
                if not row.strip() or row.startswith("not shown"):
                    break
                places = [(letter, display_width(row[:k])) for k, letter in enumerate(row)]
                for k, (start, end) in enumerate(spans):
                    columns[k] += "".join(letter for letter, place in places if start <= place < end and letter != " ")
            yield columns


def printed(text: str) -> str:
    """Return all that tables of text hold, and all their lines of title and value, without blanks."""
    upright = re.sub(r"^ +|^\S+( \S+)*  +", "", text, flags=re.MULTILINE)
    return "\n".join(("".join(upright.split()), *(column for columns in cells(text) for column in columns)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["messages"], (*TOPICS, *KEYS)),
        (["messages", "--body", "sha256"], (*TOPICS, *KEYS)),
        (["topics"], TOPICS),
        (["usage", "--by", "queue"], TOPICS),
        (["usage", "--by", "key-prefix:60"], ("order-2026-11-23-000017-eu-central-1", "FD" + "0" * 54)),
        (["query", "-t", TOPICS[0], "-k", "K1"], TOPICS[:1]),
        (["sql", "select topic, keys from messages"], TOPICS),
        (["inspect"], ("all messages, in the order they were stored", "positions of the messages of each queue")),
    ],
    ids=" ".join,
)
def test_no_topic_or_key_is_cut(
    long_names: Path, command: list[str], wanted: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(long_names, command, wanted, width, monkeypatch)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["messages"], (VHOST, *QUEUES, "order.confirmed.by.clearing-house.v1,audit")),
        (["topics"], (VHOST, *QUEUES)),
        (["usage"], (VHOST, *QUEUES, "msg_store_persistent/0.rdq")),
        (["queue", VHOST, QUEUES[0]], ("delivered",)),
        (["find", "xxxx"], (VHOST, "payload")),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_no_vhost_or_queue_is_cut(
    long_queues: Path, command: list[str], wanted: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(long_queues, command, wanted, width, monkeypatch)


def check(store: Path, command: list[str], wanted: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = run_cli(command[0], store, *command[1:])
    assert not [line for line in done.stdout.splitlines() if display_width(line.rstrip()) > width and "mqstore " not in line]
    assert not re.findall(r"…(?!/| [\d,]+ more)", done.stdout)
    shown = printed(done.stdout)
    for word in wanted:
        assert "".join(word.split()) in shown, (word, done.stdout)


@pytest.mark.parametrize("command", ["messages", "topics", "groups", "verify", "inspect", "usage"])
@pytest.mark.parametrize("case", ["4.9.3/f-broker-offsets", "3.10.8/f-mixed-features"])
def test_nothing_is_cut_at_80_columns(case: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if command == "groups" and case.startswith("3.10"):
        return
    monkeypatch.setenv("COLUMNS", "80")
    done = run_cli(command, opened(case_named(case)))
    assert not re.findall(r"…(?!/| [\d,]+ more)", done.stdout)
    assert not [line for line in done.stdout.splitlines() if display_width(line.rstrip()) > 80 and "mqstore " not in line]


@pytest.mark.parametrize("flags", [["--wide"], ["--columns", "topic,keys,tags,physical offset"]])
def test_what_is_left_out_at_80_columns_is_shown_with_wide_and_columns(
    long_names: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "not shown at this width: physical offset, size, tags" in run_cli("messages", long_names).stdout.replace("\n", " ")
    assert "settlement-confirmed" in printed(run_cli("messages", long_names, *flags).stdout)
