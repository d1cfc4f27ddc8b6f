"""`inspect` of many stores: a row for each, with what the report of a single store says, and a row for a path that is not one."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.golden import (
    CASES,
    FURTHER,
    OTHER_RABBITMQ,
    RABBITMQ,
    GoldenCase,
    case_id,
    case_named,
    opened,
    run_cli,
    unchanged,
    unpack_site,
)
from support.privilege import needs_permissions, without_privilege

from mqstore.jobs.runner import ThreadRunner

Row = dict[str, Any]

MIXED = ("4.9.3/b-kill9", "5.3.3/g-clean-small", "3.10.8/f-mixed-features", "4.9.3/m-damaged/16-everything")


def linked(root: Path, *names: str) -> list[Path]:
    root.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        (root / f"{number:02d}").symlink_to(opened(case_named(name)))
    return sorted(root.iterdir())


def rows_of(*arguments: object, status: int) -> list[Row]:
    done = run_cli("inspect", *arguments, "-o", "jsonl")
    assert done.status == status, done.stderr
    return done.rows


@pytest.mark.parametrize("case", [*CASES, *FURTHER, *RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
def test_a_row_says_what_the_report_of_the_store_says(case: GoldenCase, tmp_path: Path) -> None:
    (path,) = linked(tmp_path / "stores", case.id)
    with unchanged(opened(case)):
        alone = run_cli("inspect", path, "-o", "json")
        (row,) = rows_of(tmp_path / "stores" / "*", status=alone.status)
    report = alone.document
    for name in ("store", "family", "version", "suggested_version", "shutdown", "messages"):
        assert row[name] == report[name]
    parts = report["parts"] if "parts" in report else [part for vhost in report["vhosts"] for part in vhost["parts"]]
    assert row["files"] == sum(part["files"] for part in parts)
    assert row["bytes"] == sum(part["bytes"] for part in parts)
    assert row["findings"] == len(report["findings"])
    assert row["refusals"] == len(report["broker_would_refuse"])
    assert row["unsupported"] == len(report["unsupported"])
    assert row["messages_not_listed"] == report.get("messages_not_listed")
    assert row["error"] is None


def test_a_pattern_a_list_and_a_url_of_files_give_the_same_rows_in_order(tmp_path: Path) -> None:
    paths = linked(tmp_path / "stores", *MIXED)
    wanted = rows_of(tmp_path / "stores" / "*", status=1)
    assert [row["store"] for row in wanted] == [str(path) for path in paths]
    assert rows_of(*paths, status=1) == wanted
    assert rows_of(*paths[:2], paths[1], tmp_path / "stores" / "*", status=1) == wanted
    assert rows_of(f"file:{tmp_path}/stores/*", status=1) == wanted
    assert [row["family"] for row in wanted] == ["rocketmq", "rocketmq", "rabbitmq", "rocketmq"]
    assert wanted[0]["shutdown"] == "unclean"


def test_all_formats_hold_the_same_rows(tmp_path: Path) -> None:
    linked(tmp_path / "stores", *MIXED)
    (tmp_path / "stores" / "99").mkdir()
    pattern = tmp_path / "stores" / "*"
    wanted = rows_of(pattern, status=1)
    assert run_cli("inspect", pattern, "-o", "json").document == wanted
    found = list(csv.DictReader(io.StringIO(run_cli("inspect", pattern, "-o", "csv").stdout)))
    assert found == [{name: "" if value is None else str(value) for name, value in row.items()} for row in wanted]
    text = run_cli("inspect", pattern)
    assert (text.status, text.stderr) == (1, "")
    printed = text.stdout.replace("\n", "")  # a long path is broken at the end of a line
    assert all(row["store"][-9:] in printed for row in wanted)  # a terminal shows the ends of paths
    assert "4 stores: " in text.stdout
    assert "1 path cannot be read as a store:" in text.stdout
    assert f"{tmp_path}/stores/99isempty" in printed.replace(" ", "")


def test_a_single_path_is_the_report_of_one_store(tmp_path: Path) -> None:
    (path,) = linked(tmp_path / "st[a]res", "4.9.3/b-kill9")
    assert "settings" in run_cli("inspect", path, "-o", "json").document
    assert "".join(run_cli("inspect", path).stdout.split()).startswith(f"RocketMQstore{path}")
    (row,) = rows_of(f"{tmp_path}/st*/00", status=0)
    assert row["messages"] == 1379


def test_paths_that_are_not_stores_are_rows_with_the_reason(tmp_path: Path) -> None:
    linked(tmp_path / "stores", "5.3.3/g-clean-small")
    root = tmp_path / "stores"
    (root / "10-empty").mkdir()
    (root / "11-file").write_bytes(b"x")
    (root / "12-link").symlink_to(root / "nothing")
    (root / "13-archive.tar.xz").write_bytes(case_named("4.9.3/b-kill9").archive.read_bytes())
    (root / "14-torn.tar.xz").write_bytes(case_named("4.9.3/b-kill9").archive.read_bytes()[:5000])
    found = {Path(row["store"]).name: row for row in rows_of(root / "*", root / "15-nothing", status=1)}
    errors = {name: row["error"] for name, row in found.items()}
    assert errors["00"] is None
    assert found["13-archive.tar.xz"]["messages"] == 1379
    assert "is empty; give the directory" in errors["10-empty"]
    assert "is a file, not a directory" in errors["11-file"]
    assert "does not exist" in errors["12-link"]
    assert "does not exist" in errors["15-nothing"]
    assert str(root / "14-torn.tar.xz") in errors["14-torn.tar.xz"]
    assert all(row["family"] is row["messages"] is None for row in found.values() if row["error"])


def test_what_a_row_cannot_tell_is_not_made_up(tmp_path: Path) -> None:
    """How the broker of a bare log ended, and the messages of queues whose log is elsewhere."""
    unpack_site("bare-log-47", tmp_path / "stores" / "bare")
    apart = unpack_site("separate-commitlog", tmp_path / "stores" / "apart")
    shutil.rmtree(tmp_path / "stores" / "apart" / "logdisk")
    bare, queues = rows_of(tmp_path / "stores" / "bare", apart, status=0)
    assert (bare["shutdown"], bare["suggested_version"], bare["messages_not_listed"]) == ("unknown", "4.7.1", 3)
    assert (queues["shutdown"], queues["messages"]) == ("clean", None)
    text = run_cli("inspect", tmp_path / "stores" / "bare", apart)
    assert "2 stores: at least 3 messages, " in text.stdout
    assert "4.7.1" in text.stdout
    assert "messages in 4 queues of 1 topic; how many cannot be told without the log" in run_cli("inspect", apart).stdout


@needs_permissions
def test_a_store_without_permission_is_a_row_with_the_reason(tmp_path: Path) -> None:
    paths = linked(tmp_path / "stores", "5.3.3/g-clean-small")
    (tmp_path / "stores" / "closed").mkdir(mode=0)
    try:
        with without_privilege():
            found = rows_of(tmp_path / "stores" / "*", status=1)
    finally:
        (tmp_path / "stores" / "closed").chmod(0o755)
    assert [row["store"] for row in found if row["error"] is None] == [str(paths[0])]
    assert "permission denied" in found[1]["error"]


def test_status_2_is_for_a_pattern_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    nothing = run_cli("inspect", tmp_path / "*")
    assert (nothing.status, nothing.stdout) == (2, "")
    assert nothing.stderr.startswith(f"mqstore: nothing matches {tmp_path}/*; give a pattern of stores")
    for name in "ab":
        (tmp_path / name).mkdir()
    none = run_cli("inspect", tmp_path / "*", "-o", "jsonl")
    assert none.status == 2
    assert [row["error"] is not None for row in none.rows] == [True, True]
    assert none.stderr.startswith(f"mqstore: none of the 2 paths can be read as a store; of the first: {tmp_path}/a is empty")


def test_a_store_that_vanishes_meanwhile_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = linked(tmp_path / "stores", "5.3.3/g-clean-small", "4.9.3/b-kill9")
    shutil.copytree(paths[0].resolve(), tmp_path / "stores" / "99")
    run_each = ThreadRunner.each

    def each(self: ThreadRunner, tasks: Any, function: Any, done: Any = None) -> Any:
        for directory in (tmp_path / "stores" / "99").rglob("*"):
            directory.chmod(0o755)
        (tmp_path / "stores" / "99").chmod(0o755)
        shutil.rmtree(tmp_path / "stores" / "99")
        return run_each(self, tasks, function, done)

    monkeypatch.setattr(ThreadRunner, "each", each)
    found = rows_of(tmp_path / "stores" / "*", status=1)
    assert [row["error"] is None for row in found] == [True, True, False]


def test_options_apply_to_the_stores_they_are_for(tmp_path: Path) -> None:
    linked(tmp_path / "stores", *MIXED)
    settings = tmp_path / "broker.conf"
    settings.write_text("mappedFileSizeCommitLog=131072\n")
    names = tmp_path / "names.txt"
    names.write_text("/\tqueue\n")
    found = rows_of(tmp_path / "stores" / "*", "--config", settings, "--names", names, status=1)
    assert [row["error"] for row in found] == [None] * 4
    missing = run_cli("inspect", tmp_path / "stores" / "*", "--config", tmp_path / "nothing.conf")
    assert missing.status == 2
    assert "nothing.conf" in missing.stderr
    bad = run_cli("inspect", tmp_path / "stores" / "*", "--fs-option", "key=a")
    assert bad.status == 2
    assert "--fs-option applies to URLs" in bad.stderr


def test_a_document_of_rows_is_one_json_document(tmp_path: Path) -> None:
    linked(tmp_path / "stores", *MIXED)
    printed = run_cli("inspect", tmp_path / "stores" / "*", "-o", "json").stdout
    assert isinstance(json.loads(printed), list)
