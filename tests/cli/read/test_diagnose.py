"""The command `diagnose`: its first lines, its JSON document, its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli
from support.rocketmq_states import made

CASE = case_named("4.9.3/f-broker-offsets")
SOUND = case_named("4.9.3/a-clean-small")


def test_the_first_lines_are_the_answer_and_the_command_to_run(tmp_path: Path) -> None:
    store = made("body_flip", CASE, tmp_path / "store")
    told = " ".join(run_cli("diagnose", store).stdout.split())
    answer = f"A RocketMQ 4.9.3 broker starts on {store}; it loses 97 messages and delivers 410 messages again. Next: "
    assert told.startswith(answer)
    assert ". mqstore " in told.removeprefix(answer)


def test_the_document_has_the_fixed_names(tmp_path: Path) -> None:
    done = run_cli("diagnose", made("stray_file", CASE, tmp_path / "store"), "--for", "4.9.8", "-o", "json")
    found = json.loads(done.stdout)
    assert (found["starts"], found["loses"], found["redelivers"], found["version"]) == (False, 0, 0, "4.9.8")
    assert found["next"].startswith("mqstore ")
    assert found["evidence"][0] == {
        "finding": "stray-file",
        "file": "commitlog/core.4711",
        "offset": 0,
        "length": 23,
        "detail": "commitlog/core.4711 has 23 bytes, but every file must have 131072; move it away or give it that size; "
        "the broker does not start",
        "messages": 0,
    }


def test_a_log_file_of_the_wrong_size_is_named_once_and_with_its_place() -> None:
    found = json.loads(run_cli("diagnose", opened(case_named("4.9.3/m-damaged/07-truncate-last")), "-o", "json").stdout)["evidence"]
    [named] = [each for each in found if each["finding"] == "wrong-size"]
    assert (named["offset"], named["length"]) == (6562, 32768 - 6562)
    assert named["detail"].endswith("; the broker does not start")


@pytest.mark.parametrize(("state", "status"), [(None, 0), ("body_flip", 1), ("stray_file", 2)])
def test_the_status_says_whether_a_broker_starts_and_keeps_everything(state: str | None, status: int, tmp_path: Path) -> None:
    store = opened(SOUND) if state is None else made(state, CASE, tmp_path / "store")
    assert run_cli("diagnose", store).status == status


def test_what_cannot_be_read_has_a_status_of_its_own_and_a_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path, opened(case_named("5.5.0/g-dledger"))):
        done = run_cli("diagnose", path)
        assert (done.status, done.stdout) == (3, "")
        assert done.stderr.startswith("mqstore: ")
        assert len(done.stderr.splitlines()) == 1


def test_an_unknown_version_is_a_usage_error() -> None:
    done = run_cli("diagnose", opened(SOUND), "--for", "3.2.6")
    assert (done.status, done.stdout) == (2, "")
    assert "4.3.0 to 5.5.0" in done.stderr
