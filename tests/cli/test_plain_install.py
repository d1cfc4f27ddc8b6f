"""Without any extra every command works but those that name Spark, DuckDB or another library; these name the extra to install."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support import golden
from support.plain_install import INTERPRETER, make_plain_install, plain_packages

ABSENT = ("pyspark", "py4j", "duckdb", "lark", "Cython", "pika", "rocksdict", "starlette", "yaml")
READERS = (
    ("inspect",),
    ("inspect", "-o", "json"),
    ("messages", "-o", "jsonl"),
    ("topics",),
    ("verify", "-o", "json"),
    ("diagnose",),
    ("usage",),
    ("find", "order"),
    ("repair",),
)
OF_ROCKETMQ = (("groups",), ("timers",), ("query", "-t", "orders", "-k", "k"))
WRITERS_OF_ROCKETMQ = (("export", "--to"), ("rebuild", "--assume-defaults", "--to"), ("salvage", "--format", "jsonl", "--to"))
WRITERS_OF_RABBITMQ = (("export", "--to"), ("convert", "--queue-version", "2", "--to"), ("salvage", "--format", "jsonl", "--to"))
PROGRAM = """
import contextlib, io, json, sys
from mqstore.cli.main import run

for line in sys.stdin:
    arguments = json.loads(line)
    out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = run(arguments)
    loaded = [name for name in {absent} if name.lower() in sys.modules]
    print(json.dumps([arguments, status, errors.buffer.getvalue().decode(), loaded]), flush=True)
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_plain_install(tmp_path_factory.mktemp("plain") / "packages")


def run_all(plain: dict[str, str], commands: list[list[str]], absent: tuple[str, ...] = ABSENT) -> list[tuple[list[str], int, str]]:
    """Run commands in one process of the plain installation."""
    program = PROGRAM.replace("{absent}", repr(absent))
    done = subprocess.run(
        [*INTERPRETER, "-c", program],
        input="".join(json.dumps(each) + "\n" for each in commands),
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [loaded for *_, loaded in answers if loaded] == []
    return [(arguments, status, errors) for arguments, status, errors, _ in answers]


def test_a_plain_installation_has_nothing_of_the_extras() -> None:
    assert {name.lower() for name in plain_packages()} >= {"numpy", "pyarrow", "typer"}
    assert {name.lower() for name in plain_packages()}.isdisjoint(name.lower() for name in ABSENT)


def of_both(case: golden.GoldenCase, number: int, place: Path) -> list[list[str]]:
    store, rocketmq = str(golden.opened(case)), case in golden.CASES
    readers = (*READERS, *OF_ROCKETMQ) if rocketmq else READERS
    writers = WRITERS_OF_ROCKETMQ if rocketmq else WRITERS_OF_RABBITMQ
    return [
        *([name, store, *options] for name, *options in readers),
        *([name, store, *options, str(place / f"{number}-{name}")] for name, *options in writers),
    ]


def chosen(every: bool) -> list[golden.GoldenCase]:
    cases = [*golden.CASES, *golden.RABBITMQ, *golden.OTHER_RABBITMQ]
    return cases if every else cases[:: len(cases) // 6]


@pytest.mark.parametrize("every", [pytest.param(True, marks=pytest.mark.long), False], ids=["all", "some"])
def test_all_commands_work_on_golden_stores_without_any_extra(plain: dict[str, str], every: bool, tmp_path: Path) -> None:
    commands = [words for number, case in enumerate(chosen(every)) for words in of_both(case, number, tmp_path)]
    answers = run_all(plain, commands)
    assert len(answers) == len(commands)
    for arguments, status, errors in answers:
        assert status in (0, 1) or "mqstore[rocksdb]" in errors or (arguments[0] == "diagnose" and status in (2, 3)), (arguments, errors)
        assert "bug" not in errors, (arguments, errors)


def test_sql_needs_duckdb_and_no_spark(tmp_path: Path) -> None:
    queues = golden.opened(golden.RABBITMQ[0])
    store = golden.opened(golden.case_named("4.9.3/a-clean-small"))
    environment = make_plain_install(tmp_path / "packages", "duckdb")
    commands = [["sql", str(path), "select count(*) from messages where size > 100"] for path in (store, queues)]
    for arguments, status, errors in run_all(environment, commands, absent=("pyspark", "py4j")):
        assert status == 0, (arguments, errors)


def test_what_needs_an_extra_names_it(plain: dict[str, str], tmp_path: Path) -> None:
    store, queues = str(golden.opened(golden.case_named("4.9.3/a-clean-small"))), str(golden.opened(golden.RABBITMQ[0]))
    needs = {
        "spark": [
            ["verify", store, "--spark"],
            ["usage", store, "--master", "local[1]"],
            ["find", queues, "order", "--master", "local[1]"],
            ["export", store, "--to", str(tmp_path / "a"), "--master", "local[1]"],
            ["export", queues, "--to", str(tmp_path / "b"), "--master", "local[1]"],
            ["rebuild", store, "--to", str(tmp_path / "c"), "--master", "local[1]"],
            ["convert", queues, "--queue-version", "2", "--to", str(tmp_path / "d"), "--master", "local[1]"],
            ["sql", store, "select 1", "--master", "local[1]"],
            ["follow", store, "--to", str(tmp_path / "e"), "--once"],
            ["demo"],
        ],
        "sql": [["sql", store, "select 1"], ["sql", queues, "select 1"]],
        "console": [["console", store]],
    }
    for extra, commands in needs.items():
        for arguments, status, errors in run_all(plain, commands):
            assert status == 2, (arguments, errors)
            assert f"mqstore[{extra}]" in errors, (arguments, errors)
            assert len(errors.splitlines()) == 1, (arguments, errors)
    assert list(tmp_path.iterdir()) == []
