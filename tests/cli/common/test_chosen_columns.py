"""`--columns` prints the named columns of every table, in their order, and refuses a name that no table has."""

from __future__ import annotations

import pytest
from support.golden import case_named, opened, run_cli

STORE, NODE = opened(case_named("4.9.3/b-kill9")), opened(case_named("3.10.8/f-mixed-features"))


def test_a_table_has_the_columns_that_are_named_in_their_order_before_or_after_the_command() -> None:
    after = run_cli("messages", STORE, "-n", 2, "--columns", "verdict,Topic,stored")
    assert after.stdout.splitlines()[0].split("  ") == ["verdict", "topic", "stored (UTC)"]
    assert run_cli("--columns", "verdict,Topic,stored", "messages", STORE, "-n", 2) == after
    assert run_cli("messages", NODE, "-n", 1, "--columns", "queue,state").stderr.startswith("mqstore: --columns: there is no column state")


def test_rows_for_a_program_have_the_fields_that_are_named() -> None:
    full = run_cli("messages", STORE, "-n", 3, "-o", "jsonl").rows
    some = run_cli("messages", STORE, "-n", 3, "-o", "jsonl", "--columns", "size,body_len,topic").rows
    assert [list(row.items()) for row in some] == [[(name, row[name]) for name in ("size", "body_len", "topic")] for row in full]
    assert run_cli("topics", NODE, "-o", "csv", "--columns", "queue,messages").stdout.splitlines()[0] == "queue,messages"


def test_a_table_without_a_named_column_is_left_out_and_others_are_printed() -> None:
    shown = run_cli("usage", STORE, "--columns", "day,messages")
    assert shown.status == 0
    assert "bodies" not in shown.stdout
    assert "day         messages" in shown.stdout


@pytest.mark.parametrize("form", ["text", "jsonl", "csv"])
def test_a_column_that_no_table_has_is_refused_with_those_that_there_are(form: str) -> None:
    refused = run_cli("topics", STORE, "--columns", "topic,nonsense", "-o", form)
    assert refused.status == 2
    assert "there is no column nonsense; the columns are topic, queue" in refused.stderr
    assert run_cli("topics", STORE, "--columns", ",").stderr == "mqstore: --columns does not name a column\n"


def test_a_chosen_column_is_never_left_out_for_want_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = run_cli("messages", STORE, "-n", 2, "--columns", "topic,keys,tags,stored")
    assert all(title in shown.stdout for title in ("topic", "keys", "tags", "stored"))
    assert "not shown" not in shown.stdout
