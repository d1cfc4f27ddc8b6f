"""A misspelt topic, queue or group is answered with the name that was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli

KILLED = "4.9.3/b-kill9"
GROUPS = "4.9.3/f-broker-offsets"
NODE = "3.10.8/f-mixed-features"
VHOST_MEANT = "did you mean 'тест-β/%2F 2'?"


@pytest.mark.parametrize(
    ("case", "command", "meant"),
    [
        (KILLED, ["messages", "--topic", "orderz"], "topic 'orderz' has neither a queue nor a configuration; did you mean 'orders'?"),
        (KILLED, ["queue", "Orders", "1"], "there is no consume queue of topic 'Orders'; did you mean 'orders'?"),
        (KILLED, ["topics", "--topic", "lat"], "topic 'lat' has neither a queue nor a configuration; did you mean 'late'?"),
        (KILLED, ["query", "-t", "orderz", "-k", "k1"], "the topic may be on another broker; did you mean 'orders'?"),
        (GROUPS, ["groups", "--group", "s62_biling"], "no committed offset of group 's62_biling'; did you mean 's62_billing'?"),
        (GROUPS, ["groups", "--topic", "s62_bill"], "no committed offset of topic 's62_bill'; did you mean 's62_bills'?"),
        (NODE, ["queue", "/", "prioq"], "vhost '/' has no queue 'prioq'; did you mean 'prio.q'?"),
        (NODE, ["messages", "--queue", "ttlq"], "the store has no directory of a queue 'ttlq'; did you mean 'ttl.q'?"),
        (
            KILLED,
            ["export", "--to", "OUT", "--threads", "1", "--topic", "orderz"],
            "neither a queue nor a configuration; did you mean 'orders'?",
        ),
        (
            KILLED,
            ["replay", "--create", "--to", "OUT", "--topic", "orderz"],
            "topic 'orderz' has neither a queue nor a configuration; did you mean 'orders'?",
        ),
        (NODE, ["queue", "тест-b/%2F 2", "prio.q"], f"the store has no vhost 'тест-b/%2F 2'; {VHOST_MEANT}"),
        (NODE, ["messages", "--vhost", "тест-b/%2F 2"], f"no message matches: the store has no vhost 'тест-b/%2F 2'; {VHOST_MEANT}"),
        (NODE, ["topics", "--vhost", "тест-b/%2F 2"], f"no queue matches: the store has no vhost 'тест-b/%2F 2'; {VHOST_MEANT}"),
        (
            NODE,
            ["get", "--vhost", "тест-b/%2F 2", "--queue", "prio.q", "--at", "0"],
            f"the store has no vhost 'тест-b/%2F 2'; {VHOST_MEANT}",
        ),
        (
            NODE,
            ["export", "--to", "OUT", "--threads", "1", "--vhost", "тест-b/%2F 2"],
            f"the store has no vhost 'тест-b/%2F 2'; {VHOST_MEANT}",
        ),
        (NODE, ["replay", "--create", "--to", "OUT", "--vhost", "тест-b/%2F 2"], f"the store has no vhost 'тест-b/%2F 2'; {VHOST_MEANT}"),
        (NODE, ["salvage", "--to", "OUT.jsonl", "--vhost", "тест-b/%2F 2"], f"the store has no vhost 'тест-b/%2F 2'; {VHOST_MEANT}"),
        (
            NODE,
            ["convert", "--to", "OUT", "--queue-version", "2", "--vhost", "тест-b/%2F 2", "--queue", "prio.q"],
            f"the store has no vhost 'тест-b/%2F 2'; {VHOST_MEANT}",
        ),
        (NODE, ["queue", "nothing", "prio.q"], "the store has no vhost 'nothing'; it has '/' and 'тест-β/%2F 2'"),
        (NODE, ["get", "--queue", "ttlq", "--at", "0"], "no vhost has a queue 'ttlq'; did you mean 'ttl.q'?"),
        (NODE, ["topics", "--queue", "ttlq"], "the store has no directory of a queue 'ttlq'; did you mean 'ttl.q'?"),
    ],
)
def test_the_name_that_was_meant_is_named(case: str, command: list[str], meant: str, tmp_path: Path) -> None:
    words = [word.replace("OUT", str(tmp_path / "out")) for word in command]
    done = run_cli(words[0], opened(case_named(case)), *words[1:])
    assert meant in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("given", "meant"), [("--outptu", " (did you mean --output?)"), ("--lmit", " (did you mean --limit?)"), ("--port", "")]
)
def test_the_option_that_was_meant_is_named(given: str, meant: str) -> None:
    done = run_cli("messages", opened(case_named(KILLED)), given, "1")
    said = f"no such option: {given}{meant}; `mqstore messages --help` lists the options"
    assert (done.status, done.stderr) == (2, f"mqstore: {said}\n")


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    done = run_cli("messages", opened(case_named(KILLED)), "--topic", "completely different")
    assert " ".join(done.stdout.split()) == "no message matches: topic 'completely different' has neither a queue nor a configuration"
    done = run_cli("queue", opened(case_named(KILLED)), "completely different", "0")
    assert "`mqstore topics` lists those that exist" in " ".join(done.stderr.split())


def test_a_known_topic_without_a_match_gets_no_suggestion() -> None:
    done = run_cli("messages", opened(case_named(KILLED)), "--topic", "orders", "--key", "nobody-has-this")
    assert done.stdout == "no message matches\n"


def test_a_misspelt_key_gets_a_suggestion_and_one_with_another_number_none() -> None:
    def answer(key: str) -> str:
        return " ".join(run_cli("query", opened(case_named(KILLED)), "-t", "late", "-k", key).stdout.split())

    assert "did you mean 'OrderID38'?" in answer("OrdrID38")
    assert "did you mean 'OrderID38'?" in answer("orderid38")
    assert "key-never-seen" in answer("OrderID38999")
    assert "did you mean" not in answer("OrderID38999")
