"""What commands write: readable by others only where the directory that it is written into lets them in; secrets never."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.golden import case_named, opened_node, run_cli, unpack
from support.stores import Store, message

NODE = case_named("3.8.9/a-v1-clean")
KILLED = case_named("4.9.3/b3-kill9-torn")
COMMANDS = {
    "salvage": ("salvage", "STORE", "--to", "OUT/rows.jsonl"),
    "salvage-store": ("salvage", "STORE", "--to", "OUT/store", "--as", "rocketmq"),
    "rebuild": ("rebuild", "STORE", "--to", "OUT/store", "--copy"),
    "export-parquet": ("export", "STORE", "--to", "OUT/table", "--format", "parquet"),
    "export-jsonl": ("export", "STORE", "--to", "OUT/table", "--format", "jsonl"),
    "export-csv": ("export", "STORE", "--to", "OUT/table", "--format", "csv"),
    "lookup": ("lookup", "STORE", "--keys", "KEYS", "--to", "OUT/found"),
    "put": ("put", "OUT/store", "-t", "orders", "--body", "paid", "--create"),
    "load": ("load", "OUT/store", "--from", "ROWS", "--create"),
    "replay": ("replay", "STORE", "--to", "OUT/store", "--resume", "OUT/replay.journal", "--create"),
    "repair": ("repair", "KILLED", "--apply", "--journal", "OUT/journal"),
    "rescue": ("rescue", "NODE", "--to", "OUT/node", "--for", "4.3", "--users"),
    "convert": ("convert", "NODE", "--to", "OUT/node", "--queue-version", "2"),
    "node-export": ("export", "NODE", "--to", "OUT/table", "--format", "jsonl"),
    "node-salvage": ("salvage", "NODE", "--to", "OUT/rows.jsonl"),
}


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Where the words of a command are."""
    made = Store(tmp_path / "store")
    made.put(message("orders", b"a secret of ours", keys="k1"), message("orders", keys="k2"))
    (tmp_path / "keys").write_text("orders\tk1\n")
    (tmp_path / "rows.jsonl").write_text('{"topic": "orders", "body": "a secret of ours"}\n')
    (tmp_path / "out").mkdir()
    return {"STORE": str(made.write()), "KEYS": str(tmp_path / "keys"), "ROWS": str(tmp_path / "rows.jsonl"), "OUT": str(tmp_path / "out")}


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("mode", [0o711, 0o750])
@pytest.mark.parametrize("command", COMMANDS)
def test_others_may_read_what_a_command_writes_only_where_its_directory_lets_them_in(
    command: str, mode: int, places: dict[str, str]
) -> None:
    out = Path(places["OUT"])
    out.chmod(mode)
    words = COMMANDS[command]
    if "NODE" in words:
        places["NODE"] = str(opened_node(NODE))
    if "KILLED" in words:
        places["KILLED"] = str(unpack(KILLED, out.parent / "killed"))
    outcome = run_cli(*(places.get(word.partition("/")[0], word.partition("/")[0]) + "".join(word.partition("/")[1:]) for word in words))
    assert outcome.status in (0, 1), outcome
    written = [path for path in out.rglob("*") if not path.is_symlink()]
    assert written
    for path in written:
        found, wanted = path.stat().st_mode & 0o777, 0o777 if path.is_dir() else 0o666
        if path.name == "definitions.json":
            assert found == 0o600
        elif command == "repair":  # the journal is for its owner only
            assert not found & 0o077 or out / "journal" in path.parents
            assert not found & ~(wanted & (0o700 | mode))
        else:
            assert found == wanted & (0o700 | mode), (path, oct(found))
