"""The basket: messages come out unchanged, and are written only to a confirmed target."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import golden as goldenkit
from support.console import Visitor, golden, tables, visiting, words

import mqstore
from mqstore.console import basket
from mqstore.console.basket import Basket, InLog, InQueue, place_from
from mqstore.console.replay import _outgoing, targets_of
from mqstore.errors import UsageError
from mqstore.table.columns import RABBITMQ_COLUMNS, ROCKETMQ_COLUMNS

LOG, QUEUES = golden("4.9.3/a-clean-small"), golden("3.10.8/f-mixed-features")


@pytest.fixture
def visitor() -> Iterator[Visitor]:
    with visiting(LOG, QUEUES) as found:
        yield found


def command(*argv: object) -> list[dict[str, object]]:
    done = goldenkit.run_cli(*argv, "-o", "jsonl", "--body", "base64")
    return [json.loads(line) for line in done.stdout.splitlines()]


names = st.text(st.characters(exclude_categories=()), max_size=12)
numbers = st.integers(0, 2**63 - 1)


@given(st.one_of(st.builds(InLog, numbers, numbers), st.builds(InQueue, numbers, names, names, st.none() | st.integers(0, 255), numbers)))
def test_a_place_is_restored_from_its_text(place: InLog | InQueue) -> None:
    text = str(place)
    assert text.isascii()
    assert place_from(text) == place


@pytest.mark.parametrize(
    "text", ["", ":", "0:", "x:1", "0:-1", "0:1/2", "0:a/b/c/d", "0:a/b//", "0:%ff/b//1", f"0:{2**63}", "0:٣", "0:" + "9" * 5000]
)
def test_a_text_that_is_not_a_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not name a message"):
        place_from(text)


def test_a_basket_has_a_limit() -> None:
    kept = Basket()
    assert kept.add(InLog(0, number) for number in range(basket.LIMIT)) == basket.LIMIT
    with pytest.raises(UsageError, match="mqstore export"):
        kept.add([InLog(1, 0)])
    assert len(kept) == basket.LIMIT
    assert kept.add([InLog(0, 5)]) == 0


def test_chosen_messages_come_out_as_the_command_prints_them(visitor: Visitor) -> None:
    log, queued = command("messages", LOG)[:7], command("messages", QUEUES)[:9]
    visitor.submit("/basket/add", place=[f"0:{row['physical_offset']}" for row in reversed(log)])
    places = [str(InQueue(1, str(row["vhost"]), str(row["queue"]), row["priority_level"], int(str(row["seq_id"])))) for row in queued]  # type: ignore[arg-type]
    visitor.submit("/basket/add", place=places)
    told = visitor.get("/basket/export?family=rocketmq&format=jsonl")
    assert [json.loads(line) for line in told.text.splitlines()] == log[::-1]
    assert told.headers["content-disposition"] == 'attachment; filename="rocketmq-messages.jsonl"'
    told = visitor.get("/basket/export?family=rabbitmq&format=jsonl")
    found = {(row["queue"], row["priority_level"], row["seq_id"]): row for row in map(json.loads, told.text.splitlines())}
    assert len(found) == len(queued)
    for row in queued:
        assert {**found[row["queue"], row["priority_level"], row["seq_id"]], "pos": row["pos"]} == row
    for family, columns, number in (("rocketmq", ROCKETMQ_COLUMNS, 7), ("rabbitmq", RABBITMQ_COLUMNS, 9)):
        table = pq.read_table(io.BytesIO(visitor.get(f"/basket/export?family={family}&format=parquet").content))
        assert tuple(table.column_names) == columns
        assert table.num_rows == number


def test_all_that_a_page_shows_can_be_put_in_and_taken_out_again(visitor: Visitor) -> None:
    page = visitor.get("/stores/0/messages?topic=TopicTest")
    shown = re.findall(r'name="shown" value="([^"]+)"', page.text)
    assert shown
    visitor.submit("/basket/add", all="1", shown=shown, back="/stores/0/messages?topic=TopicTest")
    assert f"of {len(shown)} messages" in words(visitor.get("/basket"))
    visitor.submit("/basket/remove", place=shown[0])
    assert f"of {len(shown) - 1} messages" in words(visitor.get("/basket"))
    visitor.submit("/basket/clear")
    assert "The basket is empty" in words(visitor.get("/basket"))


def test_acknowledged_messages_are_put_in_only_if_chosen(visitor: Visitor) -> None:
    page = visitor.get("/stores/1/queue?vhost=/&queue=prio.q")
    shown = set(re.findall(r'name="shown" value="([^"]+)"', page.text))
    chosen = set(re.findall(r'name="place" value="([^"]+)"', page.text))
    acknowledged = [row for row in tables(page)["Messages of prio.q"] if row["State"] == "acknowledged"]
    assert len(chosen - shown) == len(acknowledged) == 5
    assert shown < chosen


def test_an_invalid_place_or_one_of_an_unknown_store_puts_nothing_in(visitor: Visitor) -> None:
    assert visitor.submit("/basket/add", place="0:x").status_code == 400
    assert visitor.submit("/basket/add", place="7:0").status_code == 404
    assert visitor.submit("/basket/add").status_code == 400
    assert "The basket is empty" in words(visitor.get("/basket"))


def test_messages_that_no_longer_exist_are_left_out_of_an_export(visitor: Visitor) -> None:
    visitor.submit("/basket/add", place=["0:1", "0:0"])
    assert len(visitor.get("/basket/export?family=rocketmq").text.splitlines()) == 1
    assert visitor.get("/basket/export?family=rabbitmq").status_code == 400
    assert visitor.get("/basket/export?family=rocketmq&format=exe").status_code == 400


# replay


def test_without_permission_to_write_there_is_no_replay(visitor: Visitor) -> None:
    visitor.submit("/basket/add", place="0:0")
    assert "--allow-writes" in words(visitor.get("/basket"))
    for path in ("/basket/replay", "/basket/replay/run"):
        page = visitor.submit(path, target="0", sure="yes")
        assert page.status_code == 400
        assert "--allow-writes" in words(page)


def confirmed(visitor: Visitor, **fields: str) -> dict[str, str]:
    """Return the fields of the confirmation page."""
    page = visitor.submit("/basket/replay", target="0")
    assert "cannot be undone" in words(page)
    found = dict(re.findall(r'<input type="hidden" name="(target|fingerprint)" value="([^"]*)"', page.text))
    return found | {"sure": "yes"} | fields


def test_messages_are_replayed_into_a_store_after_a_confirmation(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    rows = command("messages", LOG)[:5]
    with goldenkit.unchanged(Path(LOG)), visiting(LOG, QUEUES, allow_writes=True, targets=(str(target),)) as visitor:
        visitor.submit("/basket/add", place=[f"0:{row['physical_offset']}" for row in rows])
        visitor.submit("/basket/add", place=str(InQueue(1, "/", "dead.letters", None, 0)))
        fields = confirmed(visitor)
        assert not any(target.iterdir())
        page = visitor.submit("/basket/replay/run", **fields)
        (job,) = (job for job in visitor.console.jobs.all() if job.kind == "replay")
        assert job.settled.wait(60)
        assert job.state == "done", job.error
        page = visitor.get(f"/jobs/{job.id}")
        assert "Stored 6 messages" in words(page)
        assert "The basket is empty" in words(visitor.get("/basket"))
    found = mqstore.open(target).to_arrow(("topic", "body")).to_pylist()  # type: ignore[union-attr]
    assert found[:5] == [{"topic": row["topic"], "body": base64.b64decode(str(row["body"]))} for row in rows]
    assert found[5:] == [{"topic": "dead.letters", "body": b"dead-0"}]


def test_a_replay_to_a_broker_reports_how_many_of_the_messages_were_sent(visitor: Visitor) -> None:
    log = command("messages", LOG)[:2]
    places = [InLog(0, int(str(row["physical_offset"]))) for row in log] + [InQueue(1, "/", "dead.letters", None, 0)]
    reports: list[tuple[int, int]] = []
    sent = list(_outgoing(visitor.console.stores, places, "guest", lambda *report: reports.append(report)))
    assert [message.body for message in sent] == [*(base64.b64decode(str(row["body"])) for row in log), b"dead-0"]
    assert reports == [(0, 3), (1, 3), (2, 3)]


def test_a_queue_whose_name_is_not_a_valid_topic_is_reported_and_not_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with visiting(QUEUES, allow_writes=True, targets=(str(target),)) as visitor:
        row = next(row for row in command("messages", QUEUES) if not str(row["queue"]).isascii())
        place = InQueue(0, str(row["vhost"]), str(row["queue"]), None, int(str(row["seq_id"])))
        visitor.submit("/basket/add", place=str(place))
        visitor.submit("/basket/replay/run", **confirmed(visitor))
        (job,) = (job for job in visitor.console.jobs.all() if job.kind == "replay")
        assert job.settled.wait(60)
        assert job.state == "failed"
        assert "rejected a message" in job.error
    assert mqstore.open(target).to_arrow(("topic",)).num_rows == 0  # type: ignore[union-attr]


def test_nothing_is_written_without_confirmation_or_if_the_basket_has_changed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with visiting(LOG, allow_writes=True, targets=(str(target),)) as visitor:
        visitor.submit("/basket/add", place="0:0")
        assert "confirm on the previous page" in words(visitor.submit("/basket/replay/run", **confirmed(visitor, sure="")))
        fields = confirmed(visitor)
        visitor.submit("/basket/add", place=f"0:{command('messages', LOG)[1]['physical_offset']}")
        assert "has changed" in words(visitor.submit("/basket/replay/run", **fields))
        assert visitor.submit("/basket/replay", target="1").status_code == 400
        assert visitor.submit("/basket/replay", target="x").status_code == 400
        assert not any(target.iterdir())


def test_an_unreachable_broker_is_reported_without_its_password() -> None:
    with visiting(LOG, allow_writes=True, targets=("amqp://guest:secret@127.0.0.1:1/",)) as visitor:
        visitor.submit("/basket/add", place="0:0")
        assert "secret" not in visitor.get("/basket").text
        visitor.submit("/basket/replay/run", **confirmed(visitor))
        (job,) = (job for job in visitor.console.jobs.all() if job.kind == "replay")
        assert job.settled.wait(60)
        assert job.state == "failed"
        page = visitor.get(f"/jobs/{job.id}")
        assert "secret" not in page.text
        assert "127.0.0.1:1" in words(page)


@pytest.mark.parametrize("target", ["http://127.0.0.1/", "rocketmq://127.0.0.1:9876"])
def test_a_target_that_cannot_be_written_is_refused_at_the_start(target: str) -> None:
    with pytest.raises(UsageError, match="is not a replay target"):
        targets_of((target,), ())


def test_a_displayed_store_cannot_be_a_target(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "store")
    with pytest.raises(UsageError, match="one of the stores that are shown"):
        targets_of((str(link),), (tmp_path / "store",))
    assert [target.is_store for target in targets_of((str(link),), (tmp_path / "other",))] == [True]
