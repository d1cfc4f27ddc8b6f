"""What `mqstore.open` returns: messages as tables, SQL, verify."""

from __future__ import annotations

import builtins
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import rabbitmq_states, rocketmq_states
from support.golden import case_named, opened, run_cli, unchanged
from support.spark_api import needs_tables

import mqstore
from mqstore.errors import UnsupportedError, UsageError
from mqstore.stores.rabbitmq import RabbitMQ
from mqstore.stores.rocketmq import RocketMQ
from mqstore.table import QueueSelection, Selection
from mqstore.table import rows as rows_module

pytestmark = pytest.mark.versions

KILLED = case_named("4.9.3/b-kill9")
CASE = case_named("4.9.3/f-broker-offsets")
MIXED = case_named("3.10.8/f-mixed-features")


@pytest.fixture
def store() -> RocketMQ:
    found = mqstore.open(opened(KILLED))
    assert isinstance(found, RocketMQ)
    return found


@pytest.fixture
def node() -> RabbitMQ:
    found = mqstore.open(opened(MIXED))
    assert isinstance(found, RabbitMQ)
    return found


def test_conditions_are_those_of_the_command(store: RocketMQ) -> None:
    listed = run_cli("messages", opened(KILLED), "-o", "jsonl").rows
    keys = Counter(key for row in listed for key in {*(row["keys"] or "").split()})
    key, number = keys.most_common(1)[0]
    times = sorted(row["store_timestamp"] for row in listed)
    middle = times[len(times) // 2]
    with unchanged(opened(KILLED)):
        assert len(store.messages()) == len(listed)
        assert len(store.messages(topic="orders", queue=1)) == sum((row["topic"], row["queue_id"]) == ("orders", 1) for row in listed)
        assert len(store.messages(topic=["orders", "late"], queue=[0, 1])) == sum(
            row["topic"] in ("orders", "late") and row["queue_id"] in (0, 1) for row in listed
        )
        assert len(store.messages(key=key)) == number
        assert len(store.messages(since=middle)) == sum(time >= middle for time in times)
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=middle)
        assert len(store.messages(until=when)) == sum(time < middle for time in times)
        assert len(store.messages(limit=7)) == 7
        assert len(store.messages(["topic"], Selection(limit=3), topic="orders")) == 3


def test_every_form_has_the_same_rows(store: RocketMQ, node: RabbitMQ) -> None:
    for messages in (store.messages(["topic", "queue_id", "size", "tags"]), node.messages(["queue", "seq_id", "msg_id", "payload"])):
        wanted = messages.to_arrow().to_pylist()
        assert len(messages) == len(wanted) > 100
        assert list(messages) == wanted
        assert [row for batch in messages.to_batches() for row in batch.to_pylist()] == wanted
        assert messages.head(4).to_pylist() == wanted[:4]
        assert messages.to_polars().to_dicts() == wanted
        assert messages.to_duckdb().to_arrow_table().to_pylist() == wanted
        assert pa.table(messages).to_pylist() == wanted
        assert messages.to_pandas().iloc[:, 0].tolist() == [next(iter(row.values())) for row in wanted]


def test_the_messages_of_a_queue_are_those_that_the_command_lists(node: RabbitMQ) -> None:
    listed = run_cli("messages", opened(MIXED), "-o", "jsonl").rows
    wanted = Counter((row["vhost"], row["queue"]) for row in listed)
    assert Counter((row["vhost"], row["queue"]) for row in node.messages(["vhost", "queue"])) == wanted
    assert len(node.messages(vhost="/", queue="prio.q")) == wanted["/", "prio.q"]
    assert len(node.messages(selection=QueueSelection(queues=frozenset({"ttl.q"})), limit=5)) == 5


@needs_tables
def test_sql_answers_as_the_command(store: RocketMQ, node: RabbitMQ) -> None:
    query = "select topic, count(*) as n from messages group by topic order by topic"
    assert store.sql(query).to_arrow().to_pylist() == run_cli("sql", opened(KILLED), query, "-o", "json").document
    assert len(store.sql("select body from messages limit 3", columns=["body"])) == 3
    query = "select queue, count(*) as n from messages group by queue order by queue"
    assert list(node.sql(query)) == run_cli("sql", opened(MIXED), query, "-o", "json").document
    assert "result of 'select" in repr(node.sql(query))
    with pytest.raises(UsageError, match="DuckDB"):
        store.sql("select nothing from nowhere")
    with pytest.raises(UsageError, match="one statement that reads"):
        store.sql("create table t as select 1")


@needs_tables
def test_sql_uses_the_configuration_that_was_given() -> None:
    case = case_named("4.9.3/c-index-collisions")
    assert case.config is not None
    store = mqstore.open(opened(case), config=case.config)
    assert list(store.sql("select count(*) as n from index_entries")) == [
        {"n": sum(file.index_count - 1 for file in store.index_files())}  # type: ignore[union-attr]
    ]


def test_verify_reports_what_the_command_reports(store: RocketMQ, node: RabbitMQ) -> None:
    for found, case in ((store, KILLED), (node, MIXED)):
        printed = run_cli("verify", opened(case), "-o", "json").document
        report = found.verify()
        assert report.as_dict()["damage"] == printed["damage"]
        assert report.checked.messages == printed["checked"]["messages"]


def test_what_cannot_be_asked_is_one_sentence(store: RocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no column 'nope'"):
        store.messages(["nope"])
    with pytest.raises(UsageError, match="has no time zone"):
        store.messages(since=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(UsageError, match="is empty"):
        store.messages(since=5, until=4)
    monkeypatch.setattr(rows_module, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="polars is not installed"):
        store.messages().to_polars()


def test_nothing_is_read_before_rows_are_asked_for(store: RocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("read")

    with monkeypatch.context() as patch:
        patch.setattr(store, "to_batches", refuse)
        messages = store.messages(topic="orders")
        assert repr(messages).startswith(f"<messages of RocketMQ store '{opened(KILLED)}': columns topic, queue_id")
    assert messages
    assert not store.messages(topic="no such topic")


@needs_tables
def test_a_notebook_shows_the_first_rows_escaped(store: RocketMQ, tmp_path: Path) -> None:
    shown = store.messages(["topic", "tags", "body"], limit=20)._repr_html_()
    assert shown.count("<tr>") == 12
    result = store.sql("select '<b>' as \"<i>\"")._repr_html_()
    assert "&lt;b&gt;" in result
    assert "<b>" not in result
    assert "<i>" not in result


def test_public_names_are_those_that_are_documented() -> None:
    assert set(dir(mqstore)) == {*mqstore.__all__}
    assert all(hasattr(mqstore, name) for name in mqstore.__all__)
    assert builtins.open is not mqstore.open


def answers(path: Path, store: RocketMQ | RabbitMQ, place: Path, get: dict[str, Any], words: list[str], text: str) -> None:
    """Compare what each verb returns with the JSON of its command."""
    timed = ("seconds", "gb_per_s", "run_id", "to")
    asked: list[tuple[Any, list[object]]] = [
        (store.summary(), ["inspect", path]),
        (store.get(**get), ["get", path, *words]),
        (store.find(text), ["find", path, text]),
        (store.verify(), ["verify", path]),
        (store.usage(), ["usage", path]),
        (store.diagnose(), ["diagnose", path]),
        (store.export(place / "one"), ["export", path, "--to", place / "other"]),
    ]
    for report, command in asked:
        said = run_cli(*command, "-o", "json").document
        own = report.as_dict()
        for each in (said, own, said.get("read", {}), own.get("read", {})):
            for name in timed:
                each.pop(name, None)
        assert own == said, command[0]


def test_each_verb_returns_what_its_command_prints(store: RocketMQ, node: RabbitMQ, tmp_path: Path) -> None:
    for name in ("rocketmq", "rabbitmq"):
        (tmp_path / name).mkdir()
    first = next(iter(store.messages(limit=1).to_arrow().to_pylist()))
    answers(
        opened(KILLED), store, tmp_path / "rocketmq", {"offset": first["physical_offset"]}, ["--offset", first["physical_offset"]], "Order"
    )
    row = node.messages(limit=1).to_arrow().to_pylist()[0]
    answers(opened(MIXED), node, tmp_path / "rabbitmq", {"id": row["msg_id"]}, ["--id", row["msg_id"]], "dead")


def files(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("make", "name"),
    [(rocketmq_states.made, "stray_file"), (rabbitmq_states.made, "journal_hole_after_a_clean_stop")],
    ids=["rocketmq", "rabbitmq"],
)
def test_a_repair_is_planned_applied_and_taken_back_as_the_command_does(make: Any, name: str, tmp_path: Path) -> None:
    place = make(name, CASE, tmp_path / "store") if make is rocketmq_states.made else make(name, tmp_path / "store")
    before = files(place)
    repair = mqstore.open(place).repair()
    plan = run_cli("repair", place, "-o", "json").document
    assert repair.as_dict() == {"store": str(place), "steps": plan}
    assert [step["possible"] for step in plan].count(True) > 0
    assert files(place) == before
    one = run_cli("repair", place, "--apply", "-o", "json").document
    after = files(place)
    two = run_cli("repair", place, "--undo", "-o", "json").document
    assert repair.apply().as_dict() == one
    assert files(place) == after != before
    assert mqstore.open(place).repair().steps == []
    assert mqstore.open(place).repair().undo().as_dict() == two
    assert mqstore.open(place).repair().as_dict()["steps"] == plan


def test_a_store_that_is_no_directory_is_not_repaired() -> None:
    for case in (KILLED, MIXED):
        with pytest.raises(UnsupportedError, match="unpack or copy the store first"):
            mqstore.open(case.archive).repair()


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("to", "files", "seconds", "carving_seconds")}


def test_a_salvage_of_a_store_writes_and_reports_what_the_command_does(store: RocketMQ, node: RabbitMQ, tmp_path: Path) -> None:
    for opened_store, path in ((store, opened(KILLED)), (node, opened(MIXED))):
        own, other = tmp_path / f"{opened_store.family}.jsonl", tmp_path / f"{opened_store.family}.command.jsonl"
        with unchanged(path):
            report = opened_store.salvage(own)
        printed = run_cli("salvage", path, "--to", other, "-o", "json")
        assert without_times(report.as_dict()) == without_times(printed.document)
        assert report.ok == (printed.status == 0)
        assert own.read_bytes() == other.read_bytes()
        assert own.stat().st_size == printed.document["bytes"] > 0


@pytest.mark.parametrize("kind", ["rocketmq", "rabbitmq"])
def test_a_salvage_into_a_new_store_reports_what_the_command_does(kind: str, store: RocketMQ, node: RabbitMQ, tmp_path: Path) -> None:
    opened_store, path = (store, opened(KILLED)) if kind == "rocketmq" else (node, opened(MIXED))
    report = opened_store.salvage(tmp_path / "own", as_kind=kind)
    printed = run_cli("salvage", path, "--to", tmp_path / "other", "--as", kind, "-o", "json").document
    assert without_times(report.as_dict()) == without_times(printed)
    assert len(mqstore.open(tmp_path / "own").messages()) == report.as_dict()["messages"] > 0


def test_what_is_no_store_any_more_is_salvaged_as_the_command_does(tmp_path: Path) -> None:
    wrecks = {
        "image": tmp_path / "disk.img",
        "log": next(path for path in sorted((opened(KILLED) / "commitlog").iterdir()) if path.name.isdigit()),
        "file": next(iter(sorted(opened(MIXED).rglob("*.rdq")))),
    }
    wrecks["image"].write_bytes(bytes(7777) + wrecks["log"].read_bytes() + b"noise" + wrecks["file"].read_bytes())
    for name, wreck in wrecks.items():
        report = mqstore.salvage(wreck, tmp_path / f"{name}.jsonl", threads=1 if name != "file" else None)
        words = ("--threads", 1) if name != "file" else ()
        printed = run_cli("salvage", wreck, "--to", tmp_path / f"{name}-other.jsonl", *words, "-o", "json").document
        assert without_times(report.as_dict()) == without_times(printed)
        assert report.as_dict()["messages"] > 0
        assert [path.read_bytes() for path in sorted(tmp_path.glob(f"{name}.*jsonl"))] == [
            path.read_bytes() for path in sorted(tmp_path.glob(f"{name}-other.*jsonl"))
        ]


def test_a_wreck_at_a_url_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="copy it first"):
        mqstore.salvage("s3://bucket/store", tmp_path / "out.jsonl")
    done = run_cli("salvage", "s3://bucket/store", "--to", tmp_path / "out.jsonl")
    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert "copy it first" in done.stderr
