"""How far consumers have come, in stores of public reports whose offsets alone do not say it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.golden import GOLDEN, case_named, opened, run_cli, unpack_site

from mqstore.places import open_rocketmq
from mqstore.replay.sources import UNPROVED, NotConsumed
from mqstore.rocketmq.repair.plan import plan
from mqstore.rocketmq.store.pop import Checkpoint
from mqstore.rocketmq.store.unread_parts import read_epochs

DURING, AFTER = "1795604502950", "1795604502951"  # the time in hand of the pop ends at the second one
DELAYED = case_named("4.9.3/e-delay-transaction-batch")


def _group_rows(store: Path, *options: object) -> dict[tuple[str, int], dict[str, object]]:
    done = run_cli("groups", store, "-o", "jsonl", *options)
    assert done.status == 0, done
    return {(row["topic"], row["queue_id"]): row for row in done.rows}


@pytest.mark.parametrize("view", ["disk", "recovered"])
def test_a_group_behind_the_first_message_of_the_log_has_lost_those_before_it(view: str, tmp_path: Path) -> None:
    """apache/rocketmq #8753: a real 5.3.3 answers minimum 250, OFFSET_TOO_SMALL, and the group at 100 goes on at 250."""
    store = unpack_site("expired-unread-533", tmp_path)
    rows = _group_rows(store, "--view", view)
    names = ("offset", "min_offset", "max_offset", "lag", "state", "expired_unread")
    assert {place: tuple(row[name] for name in names) for place, row in rows.items()} == {
        ("TopicTest1", 0): (100, 250, 250, 0, "below-min", 150),
        ("TopicTest1", 1): (250, 250, 250, 0, "ok", 0),
        ("TopicTest1", 2): (0, 250, 250, 0, "below-min", 250),
        ("TopicTest1", 3): (250, 250, 250, 0, "ok", 0),
        ("TopicTest3", 0): (10, 69, 250, 181, "below-min", 59),
        ("TopicTest3", 1): (100, 69, 250, 150, "ok", 0),
        ("TopicTest3", 2): (0, 69, 250, 181, "below-min", 69),
        ("TopicTest3", 3): (250, 68, 250, 0, "ok", 0),
    }
    minimums = {(row["topic"], row["queue_id"]): row["min_offset"] for row in run_cli("topics", store, "-o", "jsonl", "--view", view).rows}
    assert {place: minimums[place] for place in rows} == {place: row["min_offset"] for place, row in rows.items()}
    if view == "disk":
        assert (
            "150 messages that the group has not read are gone, expired or with log files that are not here"
            in run_cli("verify", store).stdout
        )
        assert "expired unread" in run_cli("groups", store).stdout


def test_what_expired_unread_cannot_be_told_without_all_of_the_log(tmp_path: Path) -> None:
    store = unpack_site("lmq-offsets", tmp_path)
    shutil.copy(store / "config/consumerOffset.json", store / "config/lmqConsumerOffset.json")
    for number in (0, 2, 4, 6):
        (store / f"commitlog/{number * 65536:020d}").unlink()
    done = run_cli("groups", store, "-o", "jsonl")
    assert [(row["offset"], row["expired_unread"], row["state"]) for row in done.rows] == [(300, None, "ok")] * 4
    assert "cannot be told without the log at the other paths" in run_cli("groups", store).stderr
    assert open_rocketmq(store).view().log_elsewhere is not None


# delay levels


def test_delayed_messages_that_were_delivered_are_counted_by_the_copies_in_their_topics(tmp_path: Path) -> None:
    """apache/rocketmq #6881: a real 4.9.3 delivers 122 messages a second time, and its log grows."""
    store = unpack_site("delay-offset-emptied", tmp_path)
    done = run_cli("diagnose", store, "-o", "json")
    assert (done.status, done.document["redelivers"], done.document["loses"]) == (1, 122, 0)
    assert run_cli("diagnose", opened(DELAYED), "-o", "json").document["redelivers"] == 88
    states = Counter((row["topic"], row["state"]) for row in run_cli("find", store, "s61_delayed", "-o", "jsonl", "--limit", "999").rows)
    assert states["SCHEDULE_TOPIC_XXXX", "delivered"] == states["s61_delayed", "consumed"] == 40
    retried = Counter(row["state"] for row in run_cli("find", store, "%RETRY%s61_retrying", "-o", "jsonl", "--limit", "999").rows)
    assert retried["delivered"] == 82


def test_repair_writes_the_delay_offsets_that_the_log_proves_and_takes_them_back(tmp_path: Path) -> None:
    store = unpack_site("delay-offset-emptied", tmp_path)
    file = store / "config/delayOffset.json"
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert run_cli("repair", store, "--apply").status == 0
    assert json.loads(re.sub(r"(\d+):", r'"\1":', file.read_text())) == {"offsetTable": {"1": 20, "2": 10, "3": 92}}
    assert run_cli("diagnose", store, "-o", "json").document["redelivers"] == 0
    assert run_cli("repair", store, "--undo").status == 0
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_level_continues_at_the_first_message_without_a_copy(tmp_path: Path) -> None:
    """A message that was not delivered is never passed over, whatever became of those after it."""
    store = unpack_site("delay-offset-emptied", tmp_path)
    opened_store = open_rocketmq(store)
    schedule = opened_store.view().queue("SCHEDULE_TOPIC_XXXX", 2)
    record = opened_store.view().record(int(schedule.entries(5, 6)["physical_offset"][0]))
    assert record is not None
    unique = record.property_map()["UNIQ_KEY"].encode()
    with (store / "commitlog/00000000000000262144").open("r+b") as log:
        raw = log.read()
        assert unique in raw
        log.seek(raw.index(unique))
        log.write(b"00" + unique[2:])
    done = run_cli("diagnose", store, "-o", "json").document
    assert done["redelivers"] == 121
    (step,) = [step for step in plan(open_rocketmq(store)) if step.file == "config/delayOffset.json"]
    assert "level 3 from 0 to 5" in step.why


# light queues (LMQ)


def test_offsets_are_read_from_the_file_that_has_them_and_the_other_file_is_named(tmp_path: Path) -> None:
    """apache/rocketmq #7087: `consumerOffset.json` has 300 on four queues, and the file of LMQ is the empty one."""
    store = unpack_site("lmq-offsets", tmp_path)
    rows = _group_rows(store)
    assert {place: (row["group"], row["offset"], row["lag"], row["state"]) for place, row in rows.items()} == {
        ("orders", queue): ("billing", 300, 75, "ok") for queue in range(4)
    }
    assert "enableLmq=true does not load config/consumerOffset.json, but config/lmqConsumerOffset.json" in run_cli("groups", store).stderr
    diagnosis = run_cli("diagnose", store, "-o", "json").document
    (unknown,) = diagnosis["unknown"]
    assert "lmqConsumerOffset.json, which has no offset" in unknown
    assert diagnosis["next"].startswith("sh bin/mqbroker")  # a rebuild would not say it either
    assert (
        "config/consumerOffset.json is written"
        in run_cli("groups", store, "--reset", "billing", "--topic", "orders", "--to", "earliest").stdout
    )


@pytest.mark.parametrize("lmq", ["true", "false"])
def test_the_configuration_says_which_offsets_a_broker_loads(lmq: str, tmp_path: Path) -> None:
    store = unpack_site("lmq-offsets", tmp_path)
    configuration = tmp_path / "lmq.conf"
    configuration.write_text(f"enableLmq={lmq}\n")
    done = run_cli("groups", store, "--config", configuration)
    assert ("config/lmqConsumerOffset.json is empty" in done.stdout) == (lmq == "true")
    assert ("config/consumerOffset.json has 4 offsets, and a broker with enableLmq=true does not load it" in done.stderr) == (lmq == "true")
    assert run_cli("diagnose", store, "--config", configuration).status == (1 if lmq == "true" else 0)


# pop consumption


def test_a_popped_message_is_consumed_only_if_it_was_acknowledged(tmp_path: Path) -> None:
    """apache/rocketmq #3443, #5408, #7914: of 20 messages 12 are popped and 5 acknowledged; a real 5.3.3 delivers 7 again."""
    store = unpack_site("pop-unacked", tmp_path)
    for at, counts in ((DURING, (7, 0)), (AFTER, (0, 7))):
        for view in ("disk", "recovered"):
            (row,) = run_cli("groups", store, "-o", "jsonl", "--at", at, "--view", view).rows
            assert (row["offset"], row["lag"], row["in_hand"], row["waiting"]) == (12, 8, *counts)
    assert "waiting again" in run_cli("groups", store, "--at", AFTER).stdout
    table = run_cli("sql", store, "select lag, in_hand + waiting as again from groups", "-o", "jsonl").rows
    assert table == [{"lag": 8, "again": 7}]
    held = open_rocketmq(store).view().pops
    assert held.acknowledged == {("billing", "orders", 0): set(range(5))}
    assert held.held == {("billing", "orders", 0): dict.fromkeys(range(5, 12), 1795604502951)}
    done = run_cli("diagnose", store, "-o", "json")
    assert (done.status, done.document["redelivers"], done.document["loses"]) == (0, 7, 0)
    assert "have 7 messages in hand" in run_cli("timers", store).stderr
    left = NotConsumed.by(open_rocketmq(store).view(), "billing")
    kept = [not left.why_left_out({"topic": "orders", "queue_id": 0, "queue_offset": offset}) for offset in range(20)]
    assert kept == [False] * 5 + [True] * 15


def test_a_replay_says_of_what_it_leaves_out_that_consumption_is_not_known(tmp_path: Path) -> None:
    store = unpack_site("pop-unacked", tmp_path)
    words = ("--to", tmp_path / "out", "--create", "--topic", "orders", "--not-consumed-by", "billing", "--dry-run")
    done = run_cli("replay", store, *words, "-o", "json")
    assert (done.document["messages"], done.document["left_out"], done.stderr) == (15, {"that the group has passed": 5}, "")
    shutil.rmtree(store / "consumequeue" / "rmq_sys_wheel_timer")
    done = run_cli("replay", store, *words, "-o", "json")
    assert (done.document["messages"], done.document["left_out"]) == (8, {UNPROVED: 12})
    done = run_cli("replay", store, *words)
    assert "what pop consumers have in hand cannot be told without the consume queues" in done.stderr
    store = unpack_site("lmq-offsets", tmp_path / "lmq")
    groups = {row["group"] for row in run_cli("groups", store, "-o", "jsonl").rows}
    done = run_cli("replay", store, *words[:3], "--not-consumed-by", min(groups), "--dry-run")
    assert "whether messages were consumed is not known: a broker with enableLmq=true does not load" in done.stderr


@pytest.mark.parametrize(("key", "state"), [("o-3", "consumed"), ("o-7", "redelivery"), ("o-11", "redelivery"), ("o-12", "waiting")])
def test_find_says_what_became_of_a_popped_message(key: str, state: str, tmp_path: Path) -> None:
    store = unpack_site("pop-unacked", tmp_path)
    (row,) = run_cli("find", store, key, "--whole-key", "-o", "jsonl").rows
    assert row["state"] == state
    assert [each["group"] for each in row["consumed_by"]] == (["billing"] if state == "consumed" else [])
    assert [each.get("until") for each in row["not_consumed_by"]] == {"consumed": [], "waiting": [None]}.get(state, [1795604502951])


def test_a_record_of_pop_consumption_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    store = unpack_site("pop-unacked", tmp_path)
    with (store / "commitlog/00000000000000000000").open("r+b") as log:
        raw = log.read()
        log.seek(raw.index(b'{"ao":3'))
        log.write(b"\xff" * 8)
    done = run_cli("groups", store, "--at", AFTER)
    assert "1 checkpoints or acknowledgements of pop consumers cannot be read" in done.stderr


@pytest.mark.parametrize(
    "body", ["{}", '{"c":1}', '{"c":"g","t":"t","q":0,"so":0,"pt":1,"it":"x"}', '{"c":"g","t":"t","q":0,"so":0,"pt":1,"it":1,"n":-4}']
)
def test_a_body_that_is_no_checkpoint_gives_none_or_an_empty_one(body: str) -> None:
    found = Checkpoint.of(json.loads(body))
    assert found is None or found.offsets == ()


# parts that decide what clients get, and are not read


def test_static_topics_and_compacted_ones_are_named_and_not_judged(tmp_path: Path) -> None:
    """The mapping is as the classes of 5.3.3 write it, with logic queue ids as numbers."""
    store = unpack_site("expired-unread-533", tmp_path)
    assert run_cli("diagnose", store).status == 0
    (store / "config/topicQueueMapping.json").write_text(
        '{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"topicQueueMappingInfoMap":{"TopicTest1":{"bname":"broker-a",'
        '"currIdMap":{},"dirty":false,"epoch":1,"hostedQueues":{2:[{"bname":"broker-a","endOffset":-1,"gen":0,"logicOffset":700,'
        '"queueId":0,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}]},"scope":"__global__","topic":"TopicTest1","totalQueues":4}}}'
    )
    (store / "config/topics.json").write_text(
        '{"topicConfigTable":{"TopicTest3":{"attributes":{"+cleanup.policy":"COMPACTION"},"topicName":"TopicTest3"}}}'
    )
    parts = run_cli("inspect", store, "-o", "json").document["unsupported"]
    assert any("static topic TopicTest1" in part and "2 is queue 0 of broker-a, from 700 on" in part for part in parts)
    done = run_cli("diagnose", store, "-o", "json")
    assert done.status == 1
    for words in ("static topic TopicTest1", "'TopicTest3' consumers get: it is compacted"):
        assert sum(words in sentence for sentence in done.document["unknown"]) == 1
    (store / "config/topicQueueMapping.json").write_text("{")
    assert any("which there are is not known" in part for part in run_cli("inspect", store, "-o", "json").document["unsupported"])


def test_what_a_controller_wrote_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Both files are as the classes of 5.3.3 write them."""
    store = unpack_site("expired-unread-533", tmp_path)
    (store / "brokerIdentity").write_text("DefaultCluster#broker-a#2")
    (store / "epochFileCheckpoint").write_bytes(b"3\n1786556340\n1-0\n2-1000\n5-5180\n")
    parts = run_cli("inspect", store, "-o", "json").document["unsupported"]
    assert any("broker 2 of broker-a in cluster DefaultCluster" in part for part in parts)
    assert any("3, the last one, 5, from physical offset 5180" in part for part in parts)
    for damaged in (b"3\n1786556340\n1-0\n2-1000\n5-5181\n", b"2\n1786556340\n1-0\n2-1000\n5-5180\n", b"", b"\xff\n\n"):
        (store / "epochFileCheckpoint").write_bytes(damaged)
        assert any("epochFileCheckpoint is damaged" in part for part in run_cli("inspect", store, "-o", "json").document["unsupported"])


def test_a_static_topic_of_a_real_group_of_brokers_is_named_as_clients_see_it(tmp_path: Path) -> None:
    """A real 5.5.0: two of four logic queues were moved to a second broker with mqadmin, and count from 10000 on there."""
    first, second = unpack_site("static-topic-550", tmp_path), tmp_path / "second"
    rows = [json.loads(line) for line in (GOLDEN / "rocketmq-sites" / "static-topic-550.jsonl").read_text().splitlines()]
    said = {path: " ".join(run_cli("inspect", path, "-o", "json").document["unsupported"]) for path in (first, second)}
    assert "0 is queue 0 of broker-a, from 0 on;" in said[first]
    assert "2 is queue 2 of broker-a, from 0 on, then queue 0 of broker-b;" in said[first]
    assert "2 is queue 2 of broker-a, from 0 on, then queue 0 of broker-b, from 10000 on;" in said[second]
    sent = {row["key"]: row["broker"] for row in rows if "key" in row}
    kept = {
        row["keys"]: name
        for path, name in ((first, "broker-a"), (second, "broker-b"))
        for row in run_cli("messages", path, "-o", "jsonl").rows
    }
    assert kept == sent
    committed = {row["logic"]: row["committed"] for row in rows if "committed" in row}
    assert {place[1]: row["offset"] for place, row in _group_rows(first).items()} == committed


def test_the_epochs_of_a_real_group_show_where_its_logs_part(tmp_path: Path) -> None:
    """A real 5.5.0: the first master had 5 messages more than the second, which became master; as its slave it cut them."""
    said = {row["step"]: row for row in map(json.loads, (GOLDEN / "rocketmq-sites" / "controller-550.jsonl").read_text().splitlines())}
    store = unpack_site("controller-550", tmp_path)
    first, second = said["first, alone"], said["second, as master"]
    for path, row, epochs in ((store, first, [(1, 0)]), (tmp_path / "second", second, [(1, 0), (5, 2280)])):
        assert read_epochs((path / "epochFileCheckpoint").read_bytes()) == epochs
        found = run_cli("inspect", path, "-o", "json").document
        assert (found["log"]["max_offset"], found["messages"]) == (row["log"], row["queue"])
        assert found["checkpoint"]["confirmPhyOffset"] <= row["confirmed"]
        parts = found["unsupported"]
        assert f"this is broker {row['id']} of broker-a in cluster DefaultCluster" in parts[0]
        assert f"{len(epochs)}, the last one, {row['epoch']}, from physical offset {epochs[-1][1]};" in parts[1]
        states = {part["part"]: part["state"] for part in found["site"]}
        assert states["epochs of the controller"] == states["identity of the broker"] == "here"
        answer = run_cli("diagnose", path, "--for", "5.5.0", "-o", "json").document
        assert (answer["loses"], answer["next"]) == (0, f"mqstore salvage {path} --to {path}.jsonl")
        assert any("it cuts what the master lacks" in sentence for sentence in answer["unknown"])
    keys = [{row["keys"] for row in run_cli("messages", path, "-o", "jsonl").rows} for path in (store, tmp_path / "second")]
    assert keys[0] - keys[1] == {f"o-{number}" for number in range(20, 25)}
    assert said["first, as slave"]["log"] == second["log"]


# as ConsumerOrderInfoManager of 5.3.3 writes it: of 300, 302 and 303 one was acknowledged, and the time of another was changed
_ORDERS = (
    '{"table":{"orders@billing":{0:{"a":"attempt-1","cm":2,"i":60000,"l":1795720069127,"o":[300,2,3],'
    '"ot":{303:1700000300000},"popTime":1700000000000}}}}'
)


def test_an_ordered_pop_has_its_messages_in_hand_until_their_time(tmp_path: Path) -> None:
    """apache/rocketmq #8592, #10827: the queue is blocked for the group until its messages are acknowledged, or their time is over."""
    store = unpack_site("separate-commitlog", tmp_path)
    (store / "config" / "consumerOrderInfo.json").write_text(_ORDERS)
    for at, counts in ((1700000059999, (2, 0)), (1700000060000, (1, 1)), (1700000300000, (0, 2))):
        row = _group_rows(store, "--at", str(at))["orders", 0]
        assert (row["group"], row["offset"], row["in_hand"], row["waiting"]) == ("billing", 300, *counts)
    done = run_cli("diagnose", store, "--for", "5.3.3", "-o", "json").document
    assert [item["messages"] for item in done["evidence"] if item["finding"] == "in-hand"] == [2]
    assert done["loses"] == 0


@pytest.mark.parametrize("text", ['{"table":{"orders@billing":{0:{"o":[300', '{"table":[]}', '{"table":{"orders@billing":{0:{"o":[]}}}}'])
def test_orders_of_pops_that_cannot_be_read_are_said(text: str, tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    (store / "config" / "consumerOrderInfo.json").write_text(text)
    unknown = run_cli("diagnose", store, "--for", "5.3.3", "-o", "json").document
    if unknown["starts"]:
        assert any("config/consumerOrderInfo.json cannot be read, or not all of it" in sentence for sentence in unknown["unknown"])
    assert "cannot be read, or not all of it" in run_cli("groups", store).stderr
