"""Pages show the same as the readers return."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import golden as goldenkit
from support import stores as storekit
from support.console import Visitor, counted, golden, links, tables, visiting, words

from mqstore.console.drawing import WIDTH, DamageMap, Extent
from mqstore.rocketmq.format.system_topics import TRACE_TOPIC
from mqstore.table import formatting

pytestmark = pytest.mark.versions

KILLED, CLEAN, WRECK, OFFSETS, MIXED, DIRTY = range(6)
STORES = (
    "4.9.3/b-kill9",
    "5.3.3/g-clean-small",
    "4.9.3/m-damaged/16-everything",
    "4.9.3/f-broker-offsets",
    "3.10.8/f-mixed-features",
    "3.10.8/b-dirty-journal",
)


@pytest.fixture(scope="module")
def visitor() -> Iterator[Visitor]:
    with visiting(*map(golden, STORES), "/no/such/store") as found:
        yield found


def rows(*argv: object) -> list[dict[str, object]]:
    """Return rows as the command prints them."""
    done = goldenkit.run_cli(*argv, "-o", "jsonl")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_first_page_shows_each_store_and_what_cannot_be_opened(visitor: Visitor) -> None:
    text = words(visitor.get("/"))
    assert text.count("RocketMQ 4.x") == 3
    assert "RocketMQ 5.x" in text
    assert text.count("RabbitMQ classic queues") == 2
    assert "the broker was killed or is running" in text.replace("The file", "the file")
    assert "cannot be opened" in text
    assert "does not exist" in text
    assert "not verified yet" in text
    assert "0 messages in queues" not in text  # of the store without consume queues, whose log has messages
    assert "no message in a queue, messages in the log not counted" in text


def test_a_store_that_cannot_be_opened_says_so_on_its_own_pages(visitor: Visitor) -> None:
    assert visitor.get("/stores/6/topics").status_code == 503
    assert "does not exist" in words(visitor.get("/stores/6"))


def test_topics_are_those_of_the_command_with_their_messages(visitor: Visitor) -> None:
    text = words(visitor.get("/stores/0/topics"))
    told: dict[str, int] = {}
    for row in rows("topics", golden(STORES[KILLED])):
        told[str(row["topic"])] = told.get(str(row["topic"]), 0) + int(str(row["messages"]))
    for topic, messages in told.items():
        assert re.search(rf"{re.escape(topic)} .*?\b{messages:,}\b", text)


def test_lists_show_how_many_of_how_many_rows_they_contain(visitor: Visitor) -> None:
    first = visitor.get("/stores/0/messages?topic=orders")
    total = len(list(rows("queue", golden(STORES[KILLED]), "orders", 0)))
    assert re.fullmatch(r"1 to 200 of [\d,]+, newest first", counted(first))
    assert re.fullmatch(
        rf"1 to {min(200, total)} of {total}, newest first", counted(visitor.get("/stores/0/messages?topic=orders&queue=0"))
    )
    (older,) = {link for link in links(first) if "older=" in link}
    assert counted(visitor.get(older)).startswith("201 to ")


def test_the_recovered_view_has_what_the_broker_would_answer(visitor: Visitor) -> None:
    disk = counted(visitor.get("/stores/0/messages?topic=TopicTest"))
    recovered = counted(visitor.get("/stores/0/messages?topic=TopicTest&view=recovered"))
    counts = [int(re.search(r"of ([\d,]+),", text)[1].replace(",", "")) for text in (disk, recovered)]  # type: ignore[index]
    expected = [
        sum(int(str(row["messages"])) for row in rows("topics", golden(STORES[KILLED]), "--view", view) if row["topic"] == "TopicTest")
        for view in ("disk", "recovered")
    ]
    assert counts == expected
    assert counts[1] > counts[0]


def test_the_newest_messages_of_all_queues_come_before_a_topic_is_chosen(visitor: Visitor) -> None:
    known = [row for row in rows("messages", golden(STORES[OFFSETS]), "--body", "none") if row["verdict"] not in ("unindexed", "damaged")]
    places = sorted((int(str(row["physical_offset"])) for row in known), reverse=True)
    page = visitor.get(f"/stores/{OFFSETS}/messages")
    assert [int(place) for place in re.findall(r'message\?offset=(\d+)"', page.text)] == places[:50]
    assert f"The newest 50 of {len(places):,} messages" in counted(page)
    queue = visitor.get(f"/stores/{OFFSETS}/messages?queue=1")
    mine = sorted((int(str(row["physical_offset"])) for row in known if row["queue_id"] == 1), reverse=True)
    assert [int(place) for place in re.findall(r'message\?offset=(\d+)"', queue.text)] == mine[:50]
    assert "Choose a topic for its older messages" in words(page)


def test_messages_without_a_queue_entry_are_found_in_the_log(visitor: Visitor) -> None:
    page = visitor.get(f"/stores/{WRECK}/messages?source=log")
    assert "unindexed" in words(page)
    assert "oldest first" in counted(page)


def test_a_key_query_gives_the_messages_and_the_reason_that_the_command_gives(visitor: Visitor) -> None:
    store = golden(STORES[KILLED])
    for key in ("K20", "no-such-key"):
        answer = json.loads(goldenkit.run_cli("query", store, "-t", "TopicTest", "-k", key, "--explain", "-o", "json").stdout)
        text = words(visitor.get(f"/stores/0/explain?topic=TopicTest&key={key}"))
        assert (answer["reason"] or "complete") in text
        assert answer["detail"][1:40] in text
        page = visitor.get(f"/stores/0/explain?topic=TopicTest&key={key}").text
        for row in answer["messages"]:
            assert f"offset={row['physical_offset']}" in page
        for place in answer["missing"][:50]:
            assert f"offset={place}" in page


def test_an_id_of_either_kind_finds_its_message(visitor: Visitor) -> None:
    store = golden(STORES[CLEAN])
    row = next(row for row in rows("messages", store) if row["uniq_key"] and row["verdict"] == "intact")
    for wanted in (row["msg_id"], row["physical_offset"], row["uniq_key"]):
        page = visitor.get(f"/stores/{CLEAN}/id?id={wanted}")
        assert page.url.path == f"/stores/{CLEAN}/message"
        assert str(row["msg_id"]) in page.text
    missing = visitor.get(f"/stores/{CLEAN}/id?id={'0' * 31}F")
    assert missing.status_code == 404
    assert "not an offset message id" in words(missing) or "points at physical offset" in words(missing)
    foreign = str(row["msg_id"])
    other = f"{int(foreign[:2], 16) ^ 1:02X}{foreign[2:]}"
    assert "where the log has another broker's message" in words(visitor.get(f"/stores/{CLEAN}/id?id={other}"))


def test_a_message_page_shows_the_whole_record(visitor: Visitor) -> None:
    for row in rows("messages", golden(STORES[OFFSETS]), "--limit", 5):
        page = words(visitor.get(f"/stores/{OFFSETS}/message?offset={row['physical_offset']}"))
        for name in ("topic", "msg_id", "born_host", "store_host", "store_file", "verdict"):
            assert str(row[name]) in page
        properties = row["properties"]
        assert isinstance(properties, dict)
        for name, value in properties.items():
            assert f"{name} {value}" in page
        assert f"consumequeue/{row['topic']}/{row['queue_id']}/" in page


def test_a_message_page_shows_which_groups_have_consumed_it(visitor: Visitor) -> None:
    store = golden(STORES[OFFSETS])
    told = next(row for row in rows("groups", store) if row["state"] == "ok" and int(str(row["offset"])) > 0)
    queue = rows("queue", store, told["topic"], told["queue_id"])
    offset = int(str(told["offset"]))
    before = next(row for row in queue if row["queue_offset"] == offset - 1)
    page = words(visitor.get(f"/stores/{OFFSETS}/message?offset={before['physical_offset']}"))
    assert re.search(rf"{re.escape(str(told['group']))} {offset:,} consumed", page)
    behind = next((row for row in queue if row["queue_offset"] == offset), None)
    if behind is not None:
        page = words(visitor.get(f"/stores/{OFFSETS}/message?offset={behind['physical_offset']}"))
        assert re.search(rf"{re.escape(str(told['group']))} {offset:,} waiting", page)


def test_groups_are_those_of_the_command_with_their_lag(visitor: Visitor) -> None:
    text = words(visitor.get(f"/stores/{OFFSETS}/groups"))
    told = rows("groups", golden(STORES[OFFSETS]))
    assert told
    for row in told:
        lag = "" if row["lag"] is None else "not known " if row["state"] == "above-max" else f"{row['lag']:,} "
        assert row["group"] in text  # type: ignore[operator]
        assert re.search(rf"{re.escape(str(row['topic']))} {row['queue_id']} {row['offset']:,} .*?{re.escape(lag)}{row['state']}", text)


def test_pages_say_what_a_pop_consumer_has_in_hand(tmp_path: Path) -> None:
    store = goldenkit.unpack_site("pop-unacked", tmp_path)
    (row,) = rows("find", store, "o-7", "--whole-key")
    with visiting(store) as visitor:
        assert "lag 8, 7 messages popped and waiting for redelivery" in words(visitor.get("/stores/0/groups"))
        assert "8 7 messages popped and waiting for redelivery" in words(visitor.get("/stores/0"))
        assert "billing 12 waiting for redelivery" in words(visitor.get(f"/stores/0/message?offset={row['physical_offset']}"))
        assert "waits for redelivery" in words(visitor.get("/find", params={"text": "o-7"}))


def test_messages_that_expired_unread_are_said_of_the_group_and_of_each_queue(tmp_path: Path) -> None:
    store = goldenkit.unpack_site("expired-unread-533", tmp_path)
    with visiting(store) as visitor:
        page = visitor.get("/stores/0/groups")
        assert "g1 lag 512, 528 messages expired unread" in words(page)
        shown = {(row["Topic"], int(row["Queue"])): row["Note"] for row in tables(page)["Offsets of g1"]}
        assert "528 messages expired unread" in words(visitor.get("/stores/0"))
    told = {(row["topic"], row["queue_id"]): row["expired_unread"] for row in rows("groups", store)}
    assert shown == {queue: f"{number} messages expired unread" if number else "" for queue, number in told.items()}


def test_a_trace_in_the_store_is_shown_with_the_message(tmp_path: Path) -> None:
    unique = "7F00000100002A9F0000000000A50ECD"
    item = f"Pub\x011640995200500\x01DefaultRegion\x01P1\x01orders\x01{unique}\x01tk\x01k\x01127.0.0.1:1\x016\x014\x010\x01ID\x01true"
    before = f"SubBefore\x011640995200600\x01null\x01G1\x01R1\x01{unique}\x010\x01k"
    after = f"SubAfter\x01R1\x01{unique}\x0117\x01false\x01k\x012"
    store = storekit.Store(tmp_path)
    store.put(storekit.message("orders", b"paid", properties=f"UNIQ_KEY\x01{unique}".encode()))
    store.put(storekit.message(TRACE_TOPIC, f"{item}\x02".encode(), keys=f"{unique} k"))
    store.put(storekit.message(TRACE_TOPIC, f"{before}\x02{after}\x02nonsense".encode(), keys=f"{unique} k"))
    store.write()
    with visiting(tmp_path) as visitor:
        text = words(visitor.get("/stores/0/message?offset=0"))
        assert "sent P1 4 ms success" in text
        assert "consumed G1 17 ms failure exception" in text


def test_verify_maps_the_damage_that_the_command_finds(visitor: Visitor) -> None:
    for number in (WRECK, KILLED, DIRTY):
        report = json.loads(goldenkit.run_cli("verify", golden(STORES[number]), "-o", "json").stdout)
        page = visitor.submit(f"/stores/{number}/verify")
        (job,) = (job for job in visitor.console.jobs.all() if job.kind == "verify" and job.store == number)
        assert job.settled.wait(60)
        page = visitor.get(f"/stores/{number}/verify")
        text = words(page)
        assert ("Intact: nothing is damaged." in text) == report["ok"]
        files = {item["file"] for item in report["damage"]}
        for item in report["damage"][:50]:
            assert item["kind"] in text
        for name in files:
            place = Path(golden(STORES[number])) / name
            if place.is_file() and place.stat().st_size:
                shown = visitor.get(f"/stores/{number}/file", params={"name": name})
                assert 'class="damage"' in shown.text
                assert re.search(r"findings? over|findings over", shown.text)
        assert ("damaged" if files else "verified · intact") in words(visitor.get("/")) or not report["ok"]


def test_usage_is_that_of_the_command(visitor: Visitor) -> None:
    store = golden(STORES[KILLED])
    told = json.loads(goldenkit.run_cli("usage", store, "-o", "json").stdout)
    visitor.submit("/stores/0/usage")
    (job,) = (job for job in visitor.console.jobs.all() if job.kind == "usage" and job.store == 0)
    assert job.settled.wait(60)
    text = words(visitor.get("/stores/0/usage"))
    assert f"{told['messages']:,} messages" in text
    for by in ("topic", "day"):
        for row in told["by"][by]:
            assert f"{row[by]} {row['messages']:,}" in text


def test_queues_of_rabbitmq_are_those_of_the_command(visitor: Visitor) -> None:
    text = words(visitor.get(f"/stores/{MIXED}/queues"))
    told = rows("topics", golden(STORES[MIXED]))
    assert told
    for row in told:
        assert f"{row['vhost']} {row['queue']} " in text
    assert f"of {len(told)} queues" in text


def test_messages_of_a_queue_have_the_state_that_the_command_prints(visitor: Visitor) -> None:
    for row in rows("topics", golden(STORES[MIXED])):
        entries = rows("queue", golden(STORES[MIXED]), row["vhost"], row["queue"])
        page = visitor.get(f"/stores/{MIXED}/queue", params={"vhost": str(row["vhost"]), "queue": str(row["queue"])})
        if not entries:
            assert counted(page) == "No such message"
            continue
        assert counted(page).startswith(f"{len(entries)} of {len(entries)}, ")
        text = words(page)
        for entry in entries[:30]:
            assert re.search(rf"\b{entry['seq_id']} {entry['state']}", text)
        for state in {str(entry["state"]) for entry in entries}:
            params = {"vhost": str(row["vhost"]), "queue": str(row["queue"]), "state": state}
            number = sum(entry["state"] == state for entry in entries)
            assert counted(visitor.get(f"/stores/{MIXED}/queue", params=params)).startswith(f"{number} of {number}, ")


def test_pages_of_a_long_queue_hold_every_entry_once(visitor: Visitor) -> None:
    told = max(rows("topics", golden(STORES[DIRTY])), key=lambda row: int(str(row["messages"])))
    entries = rows("queue", golden(STORES[DIRTY]), told["vhost"], told["queue"])
    assert len(entries) > 400
    page = visitor.get(f"/stores/{DIRTY}/queue", params={"vhost": str(told["vhost"]), "queue": str(told["queue"])})
    seen: list[int] = []
    while True:
        seen += [int(found) for found in re.findall(r'aria-label="Select sequence id (\d+)"', page.text)]
        following = [link for link in links(page) if "seq=" in link and "/queue?" in link]
        if not following:
            break
        page = visitor.get(following[0])
    assert seen == [entry["seq_id"] for entry in entries]


def test_a_message_of_rabbitmq_is_found_by_its_id(visitor: Visitor) -> None:
    row = rows("messages", golden(STORES[MIXED]))[0]
    page = visitor.get(f"/stores/{MIXED}/queued?id={row['msg_id']}")
    assert page.url.path == f"/stores/{MIXED}/message"
    assert str(row["msg_id"]) in page.text
    assert visitor.get(f"/stores/{MIXED}/queued?id={'0' * 32}").status_code == 404


def test_pages_of_the_other_family_say_so(visitor: Visitor) -> None:
    assert "RabbitMQ message store" in words(visitor.get(f"/stores/{MIXED}/topics"))
    assert "RocketMQ store" in words(visitor.get("/stores/0/queues"))


def test_a_store_that_grew_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.console.stores.CHECK_INTERVAL", 0.0)
    store = storekit.Store(tmp_path / "store")
    store.put(storekit.message("orders", b"one"))
    store.write()
    with visiting(tmp_path / "store") as visitor:
        assert counted(visitor.get("/stores/0/messages?topic=orders")).startswith("1 to 1 of 1,")
        store.put(storekit.message("orders", b"two"))
        store.write()
        assert counted(visitor.get("/stores/0/messages?topic=orders")).startswith("1 to 2 of 2,")
        shutil.rmtree(tmp_path / "store")
        assert visitor.get("/stores/0/topics").status_code == 503


def test_an_archive_is_shown_like_a_store() -> None:
    with visiting(goldenkit.case_named(STORES[KILLED]).archive) as visitor:
        assert "TopicTest" in words(visitor.get("/stores/0/topics"))
        visitor.submit("/stores/0/usage")
        assert "Usage by topic" in words(visitor.get("/stores/0/usage"))


def test_one_file_of_a_log_is_shown_as_that_and_its_queues_are_not_called_missing() -> None:
    file = sorted((Path(golden(STORES[KILLED])) / "commitlog").iterdir())[1]
    rows_of_file = rows("messages", file)
    with visiting(file) as visitor:
        home, summary = words(visitor.get("/")), words(visitor.get("/stores/0"))
        for text in (home, summary):
            assert "One file of a RocketMQ log" in text
            assert re.search(r"\b(clean|unclean|0 keys|0 consumer groups|RocketMQ 4\.9)\b", text) is None
        assert "messages not counted: its queues are not known" in home
        assert "Queues, index, checkpoint and configuration of its store are not known, nor how its broker ended" in summary
        for page, what in (("topics", "consume queues"), ("groups", "consumer offsets"), ("messages", "consume queues")):
            text = words(visitor.get(f"/stores/0/{page}"))
            assert f"is one file of a log: the {what} of its store are not known" in text
            assert re.search(r"There are no queues|None|No group has committed", text) is None
        refused = visitor.get("/stores/0/messages?topic=late")
        assert refused.status_code == 422
        assert "the consume queues of its store are not known" in words(refused)
        walked = visitor.get("/stores/0/messages?source=log")
        assert tables(walked)["Records of the log"][0]["Bytes"] == str(rows_of_file[0]["size"])


def test_stores_of_the_same_name_are_distinguished(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store = storekit.Store(tmp_path / name / "store")
        store.put(storekit.message("orders"))
        store.write()
    with visiting(tmp_path / "a" / "store", tmp_path / "b" / "store") as visitor:
        assert visitor.console.stores.names == ("a/store", "b/store")


def test_a_map_shows_the_smallest_damage_and_stays_small() -> None:
    many = DamageMap(1 << 30, 1 << 30, tuple(Extent(at << 10, 1, "bad-frame") for at in range(0, 1 << 20, 50)))
    assert len(many.bars) <= 400
    assert many.bars[-1].x + many.bars[-1].width <= WIDTH
    assert many.damaged == len(many.extents)
    apart = DamageMap(1000, 800, (Extent(100, 50, "zeroed"), Extent(900, 0, "torn-record")))
    assert [bar.what for bar in apart.bars] == ["zeroed", "torn-record"]
    last = DamageMap(100, 100, (Extent(99, 10**9, "torn-record"),))
    assert [(bar.x + bar.width) for bar in last.bars] == [WIDTH]
    assert DamageMap(0, 0, (Extent(0, 0, "missing-file"),)).bars


def test_expiry_is_judged_at_the_given_time() -> None:
    year_2027, year_2026 = 1_798_761_600_000_000, 1_767_225_600_000_000
    for now, shown in ((year_2027, True), (year_2026, False)):
        with visiting(golden(STORES[MIXED]), now=now) as visitor:
            expired = re.findall(r'<td class="n">([^<]*)</td><td class="n">[^<]*</td><td><span', visitor.get("/stores/0/queues").text)
            assert ("4" in expired) is shown


def test_the_map_of_a_queue_has_every_entry_of_its_journal_and_segments(visitor: Visitor) -> None:
    page = visitor.get(f"/stores/{DIRTY}/queue?vhost=/&queue=" + str(rows("topics", golden(STORES[DIRTY]))[0]["queue"]))
    queue = str(rows("topics", golden(STORES[DIRTY]))[0]["queue"])
    entries = rows("queue", golden(STORES[DIRTY]), "/", queue)
    by_file: dict[str, int] = {}
    for row in entries:
        by_file[str(row["index_file"])] = by_file.get(str(row["index_file"]), 0) + 1
    drawn = dict(re.findall(r'aria-label="([^":]+(?:jif|idx|qi)): ([\d,]+) entr', page.text))
    assert {name: int(number.replace(",", "")) for name, number in drawn.items()} == by_file
    assert len(by_file) > 1


def test_messages_of_a_rabbitmq_store_are_listed_in_pages_over_all_queues(visitor: Visitor) -> None:
    wanted = [row for row in rows("messages", golden(STORES[DIRTY]), "--body", "none") if row["verdict"] != "consumed"]
    first, second = (visitor.get(f"/stores/{DIRTY}/messages?from={start}") for start in (0, 200))
    shown = [(row["Queue"].split()[0], int(row["Sequence id"])) for page in (first, second) for row in tables(page)["Messages"]]
    assert shown == [(row["queue"], row["seq_id"]) for row in wanted[:400]]
    assert f"1 to 200 of {len(wanted):,}" in words(first)
    assert visitor.get(f"/stores/{DIRTY}/messages?state=nonsense").status_code == 400


def test_a_compressed_body_is_shown_decompressed_up_to_a_limit(tmp_path: Path) -> None:
    bodies = [gzip.compress(b'{"paid": true}'), gzip.compress(bytes(9 << 20)), gzip.compress(b"cut off" * 99)[:-9], b"plain"]
    store = storekit.Store(tmp_path / "store")
    for body in bodies:
        store.put(storekit.message("zipped", body))
    store.write()
    offsets = [int(str(row["physical_offset"])) for row in rows("messages", tmp_path / "store")]
    with visiting(tmp_path / "store") as own:
        pages = [words(own.get(f"/stores/0/message?offset={offset}&unpacked=1")) for offset in offsets]
        assert '"paid": true' in pages[0]
        assert f"Decompressed from {len(bodies[0])} bytes of gzip" in pages[0]
        assert "expands beyond 8 MiB" in pages[1]
        assert "is not a valid gzip stream: Compressed file ended" in pages[2]
        assert "ecompress" not in pages[3]


def test_times_are_shown_in_the_zone_that_a_visitor_chooses_and_fields_accept_them() -> None:
    with visiting(golden(STORES[KILLED])) as own:
        row = next(row for row in rows("messages", golden(STORES[KILLED])) if row["topic"] == "TopicTest")
        stored = int(str(row["store_timestamp"]))
        address = f"/stores/0/message?offset={row['physical_offset']}"
        assert f"{formatting.moment(stored)} by" in words(own.get(address))
        assert own.submit("/zone", zone="asia/kolkata", back=address).url.path == "/stores/0/message"
        text = words(own.get(address))
        assert f"{formatting.moment(stored + 19_800_000)}+05:30 by" in text
        assert "Times are in Asia/Kolkata" in text
        shown = counted(own.get("/stores/0/messages", params={"topic": "TopicTest", "until": "2022-01-01 05:30:05+05:30"}))
        assert shown == counted(own.get("/stores/0/messages?topic=TopicTest&until=1640995205000"))
        refused = own.submit("/zone", zone="Mars/Olympus")
        assert refused.status_code == 400
        assert "there is no time zone" in words(refused).lower()


def test_a_card_says_what_matters_and_no_store_with_losses_is_green() -> None:
    with visiting(golden(STORES[WRECK])) as own:
        own.get("/stores/0")
        for job in own.console.jobs.all():
            assert job.settled.wait(60)
        found = goldenkit.run_cli("diagnose", golden(STORES[WRECK]), "-o", "json").document
        page = own.get("/")
        assert f"starts, loses {found['loses']:,} messages, delivers {found['redelivers']:,} again" in words(page)
        in_log = goldenkit.run_cli("verify", golden(STORES[WRECK]), "-o", "json").document["checked"]["messages"]
        assert goldenkit.run_cli("inspect", golden(STORES[WRECK]), "-o", "json").document["messages"] == 0
        assert f"no message in a queue, {in_log:,} messages in the log" in words(page)
        assert 'class="mark good"' not in page.text
        assert 'class="mark long good"' not in page.text


def test_findings_are_grouped_by_kind() -> None:
    with visiting(golden(STORES[WRECK])) as own:
        own.submit("/stores/0/verify")
        for job in own.console.jobs.all():
            assert job.settled.wait(60)
        kinds = {row["kind"] for row in goldenkit.run_cli("verify", golden(STORES[WRECK]), "-o", "jsonl").rows}
        assert len(kinds) > 3
        page = own.get("/stores/0/verify").text
        assert set(re.findall(r'<details class="kind" ?><summary><strong>([a-z-]+)', page)) == kinds


def test_the_first_page_shows_what_the_overview_of_a_store_found() -> None:
    with visiting(golden(STORES[WRECK]), golden(STORES[CLEAN])) as own:
        assert "starts" not in words(own.get("/"))
        for number in (0, 1):
            own.get(f"/stores/{number}")
        for job in own.console.jobs.all():
            assert job.settled.wait(60)
        losses = [goldenkit.run_cli("diagnose", golden(STORES[case]), "-o", "json").document["loses"] for case in (WRECK, CLEAN)]
        assert losses[0] > 0
        assert losses[1] == 0
        assert words(own.get("/")).count("starts") == 2
        assert words(own.get("/")).count(f"starts, loses {losses[0]:,} messages") == 1
