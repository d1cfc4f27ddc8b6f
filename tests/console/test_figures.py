"""The figures of the console's pages are those of the commands, for every golden store."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.console import Visitor, tables, visiting, words
from support.golden import CASES, FURTHER, OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, opened, run_cli

from mqstore.table.formatting import size


def document(command: str, case: GoldenCase) -> Any:
    return run_cli(command, opened(case), "-o", "json").document


def number(pattern: str, text: str) -> int:
    found = re.search(pattern.replace("#", r"([\d,]+)"), text)
    assert found is not None, (pattern, text)
    return int(found[1].replace(",", ""))


def whole(text: str) -> int:
    return int(text.replace(",", "") or 0)


def settle(visitor: Visitor) -> None:
    """Wait for every job of the console."""
    for job in visitor.console.jobs.all():
        assert job.settled.wait(60)
        assert not job.error, job.error


def overview_of(visitor: Visitor) -> Any:
    """Return the first page of the store with everything that it runs by itself."""
    visitor.get("/stores/0")
    settle(visitor)
    return visitor.get("/stores/0")


def verified(visitor: Visitor) -> str:
    visitor.submit("/stores/0/verify")
    settle(visitor)
    return words(visitor.get("/stores/0/verify"))


def assert_verify_agrees(visitor: Visitor, case: GoldenCase) -> None:
    report, text = document("verify", case), verified(visitor)
    said = run_cli("verify", opened(case)).stdout.splitlines()[0]
    assert said in text
    assert said in words(visitor.get("/stores/0"))
    assert said[1:].removesuffix(".") in words(visitor.get("/"))
    if report["ok"]:
        assert said.startswith(("Intact", "Nothing is damaged, but"))
    else:
        affected, total = report["messages"]["affected"], report["messages"]["total"]
        some = f"{affected:,} of {total:,} message" if affected else "no message is known to be affected"
        assert some in said
        assert number(r"; # finding", said) == len(report["damage"])
    assert number(r"Checked # message", text) == report["checked"]["messages"]
    if records := report["checked"]["records"]:
        assert number(r"# records?(?: of |:)", text) == records
    assert number(r"# (?:queue|index) entr(?:y|ies)", text) == report["checked"]["queue_entries"]
    assert text.count("Note: ") == len(report["notes"])
    for note in report["notes"]:
        assert note[1:].replace("`", "") in text.replace("`", "")


def assert_overview_agrees(page: Any, case: GoldenCase) -> None:
    """The state of the store in one line, and its files, are those of diagnose and verify."""
    text, report = words(page), document("verify", case)
    said = run_cli("diagnose", opened(case), "-o", "json")
    if said.status == 3:
        assert "cannot be determined" in text
    else:
        answer = said.document
        assert run_cli("diagnose", opened(case)).stdout.splitlines()[0] in text
        assert ("does not start on" in text) == (not answer["starts"])
        if answer["starts"]:
            assert ("loses" in text.partition("Next:")[0]) == bool(answer["loses"])
        assert answer["next"] in text
    strips = tables(page)["Parts of the store"]
    names = [path.relative_to(opened(case)) for path in opened(case).rglob("*") if path.is_file()]
    assert sum(whole(row["Files"]) for row in strips) == len(names)
    assert sum(whole(row["Findings"]) for row in strips) == len(report["damage"])
    for row in strips:
        part = row["Part"]
        if part in ("commitlog", "consumequeue", "index", "config"):
            assert whole(row["Files"]) == sum(name.parts[0] == part for name in names)
            assert whole(row["Findings"]) == sum(item["file"].startswith(f"{part}/") for item in report["damage"])
        elif part in ("queues", "msg_store_persistent", "msg_store_transient"):
            assert whole(row["Files"]) == sum(part in name.parts[:-1] for name in names)
            assert whole(row["Findings"]) == sum(f"/{part}/" in item["file"] for item in report["damage"])


def assert_pages_of_rocketmq_agree(visitor: Visitor, case: GoldenCase, by_topic: dict[str, int]) -> None:
    overview = visitor.get("/stores/0")
    found = tables(overview)
    if "counted from the entries" in words(overview):
        periods = found["Messages over time"]
        assert sum(whole(row["Messages"]) for row in periods) == sum(by_topic.values())
        for topic, messages in sorted(by_topic.items(), key=lambda row: (-row[1], row[0]))[:5]:
            shown = [whole(row[name]) for row in periods for name in row if name.rstrip("…") == topic[: len(name.rstrip("…"))]]
            assert messages == 0 or sum(shown) == messages
        assert_times_agree(overview, case)
    lags: dict[str, int | None] = {}
    for row in run_cli("groups", opened(case), "-o", "jsonl").rows:
        counted = row["lag"] is not None and row["lag"] >= 0
        lags[row["group"]] = (lags.get(row["group"]) or 0) + row["lag"] if counted else lags.get(row["group"])
    groups = found.get("Lag of the consumer groups", ())
    shown_lags = {row["Group"]: None if row["Lag"] == "not known" else whole(row["Lag"]) for row in groups}
    assert shown_lags.items() <= lags.items()
    assert len(shown_lags) == min(10, len(lags))
    usage = run_cli("usage", opened(case), "--by", "topic", "-o", "jsonl").rows
    disk = {row["Topic"]: (row["Bytes"], whole(row["Messages"])) for row in found.get("Disk", ())}
    assert disk.items() <= {row["topic"]: (size(row["bytes"]), row["messages"]) for row in usage}.items()
    assert len(disk) == min(10, len(usage))
    full = tables(visitor.get("/stores/0/usage"))
    for by in ("topic", "day"):
        rows = run_cli("usage", opened(case), "--by", by, "-o", "jsonl").rows
        mine = {row[by.capitalize()]: (whole(row["Messages"]), whole(row["Bytes"])) for row in full.get(f"Usage by {by}", ())}
        assert mine == {str(row[by]): (row["messages"], row["bytes"]) for row in rows[:200]}


def assert_times_agree(overview: Any, case: GoldenCase) -> None:
    """Where no clock went back and nothing is damaged, each period has the messages that were stored in it and have a queue entry."""
    rows = [row for row in run_cli("messages", opened(case), "--body", "none", "-o", "jsonl").rows if row["verdict"] == "intact"]
    times = [row["store_timestamp"] for row in rows]
    found = re.findall(r"since=(\d+)&amp;until=(\d+).*?([\d,]+)</td></tr>", overview.text)
    periods = [(int(start), int(stop), whole(messages)) for start, stop, messages in found]
    assert periods
    # a record may have no entry (a transaction), several entries (other queues), or hold several messages (a batch queue)
    one_each = len(rows) == sum(messages for _, _, messages in periods)
    if times == sorted(times) and one_each and document("verify", case)["ok"]:
        for start, stop, messages in periods:
            assert messages == sum(start <= time < stop for time in times)


def assert_pages_of_rabbitmq_agree(visitor: Visitor, case: GoldenCase, rows: list[dict[str, Any]]) -> None:
    found = tables(visitor.get("/stores/0"))
    depths = {(row["Vhost"], row["Queue"]): row for row in found.get("Depth of the queues", ())}
    full = [row for row in rows if row["start"] != "not read" and row["messages"] + row["not_recovered"]]
    assert len(depths) == min(10, len(full))
    for row in full:
        shown = depths.get((row["vhost"], row["queue"]))
        if shown is not None:
            assert whole(shown["Ready"]) + whole(shown["Unacknowledged"]) == row["messages"]
            for name in ("lost", "waiting", "transient"):
                assert whole(shown[name.capitalize()]) == row[name]
            entries = run_cli("queue", opened(case), row["vhost"], row["queue"], "-o", "jsonl").rows
            assert whole(shown["Unacknowledged"]) == sum(bool(entry["recovered"] and entry["redelivered"]) for entry in entries)
    listed = visitor.get("/stores/0/messages")
    assert "None" not in words(listed).split()
    total = sum(row["messages"] + row["not_recovered"] for row in full)
    assert number("All but acknowledged #", words(listed)) == total
    for state, names in (("ready", ()), ("lost", ("lost",)), ("acknowledged", ("acknowledged",))):
        page = visitor.get(f"/stores/0/messages?state={state}")
        shown = tables(page).get("Messages", [])
        wanted = sum(row[name] for row in rows for name in names) if names else None
        assert {row["State"].split()[0] for row in shown} <= {state}
        if wanted is not None and state != "acknowledged":
            assert len(shown) == min(200, wanted)
        if shown:
            assert number("1 to # of", words(page)) == len(shown)
    usage = document("usage", case)
    disk = {row["Queue"]: row["Bytes"] for row in found.get("Disk", ())}
    assert disk.items() <= {f"{row['queue']} of {row['vhost']}": size(row["bytes"] + row["index_bytes"]) for row in usage["queues"]}.items()
    files = {row["Message file"]: (row["Records"], row["Bytes"]) for row in tables(visitor.get("/stores/0/usage")).get("Usage by file", ())}
    assert files == {row["file"]: (f"{row['records']:,}", f"{row['bytes']:,}") for row in usage["files"][:200]}


@pytest.mark.parametrize("case", [*CASES, *FURTHER], ids=case_id)
def test_a_rocketmq_store_has_the_same_figures_in_the_console_and_in_the_commands(case: GoldenCase) -> None:
    inspected = document("inspect", case)
    by_topic: dict[str, int] = {}
    if inspected["messages"] is not None:
        for row in run_cli("topics", opened(case), "-o", "jsonl").rows:
            by_topic[row["topic"]] = by_topic.get(row["topic"], 0) + row["messages"]
        assert sum(by_topic.values()) == inspected["messages"]
    with visiting(opened(case)) as visitor:
        assert_overview_agrees(overview_of(visitor), case)
        assert_pages_of_rocketmq_agree(visitor, case, by_topic)
        if inspected["messages"] is None:
            assert "messages not counted" in words(visitor.get("/"))
            assert "Queues not read" in words(visitor.get("/stores/0"))
            assert_verify_agrees(visitor, case)
            return
        card = words(visitor.get("/"))
        assert "no message in a queue" in card or number("· # messages? in queues", card) == inspected["messages"]
        assert inspected["messages"] == 0 or "no message in a queue" not in card
        if inspected["queues"]:
            assert number("Queues # messages? in", words(visitor.get("/stores/0"))) == inspected["messages"]
        topics = visitor.get("/stores/0/topics").text
        shown = dict(
            re.findall(r'<th scope="row"><a[^>]*>([^<]*)</a></th><td>[^<]*</td><td class="n">\d+</td><td class="n">([\d,]+)', topics)
        )
        assert {name: int(count.replace(",", "")) for name, count in shown.items() if count != "0"} == {
            name: count for name, count in by_topic.items() if count
        }
        assert_verify_agrees(visitor, case)


@pytest.mark.parametrize("case", [*RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
def test_a_rabbitmq_store_has_the_same_figures_in_the_console_and_in_the_commands(case: GoldenCase) -> None:
    inspected, rows = document("inspect", case), run_cli("topics", opened(case), "-o", "jsonl").rows
    with visiting(opened(case)) as visitor:
        assert_overview_agrees(overview_of(visitor), case)
        assert_pages_of_rabbitmq_agree(visitor, case, rows)
        assert number("· # messages? in queues", words(visitor.get("/"))) == inspected["messages"]
        overview, queues = words(visitor.get("/stores/0")), visitor.get("/stores/0/queues")
        summary = overview[overview.index("Summary RabbitMQ") :]
        for name, pattern in (
            ("messages", "Queues # messages?, .*?, in"),
            ("lost", "besides, # messages? lost: the broker would start without"),
            ("waiting", "besides, # messages? in queues that the broker would not start"),
            ("transient", "besides, # transient messages?, which a broker drops"),
            ("acknowledged", "# acknowledged messages? still in the files"),
        ):
            assert sum(map(whole, re.findall(pattern.replace("#", r"([\d,]+)"), summary))) == inspected[name]
        for name in ("lost", "waiting", "transient"):
            listed = re.search(rf"(?:Not recovered:|,) ([\d,]+) {name}", words(queues).partition(" Vhost Queue ")[0])
            assert (whole(listed[1]) if listed else 0) == inspected[name]
        assert number("# messages? that the broker would recover in", words(queues)) == sum(row["messages"] for row in rows)
        assert_verify_agrees(visitor, case)
