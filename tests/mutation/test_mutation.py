"""The changes that `scripts/mutate` makes."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from mutation.__main__ import ROOT, equivalents, table
from mutation.mutants import KINDS, block_of, drawn, edits, lasting

SOURCE = b'''\
def first(a, b):
    """Of \xc3\xa4 text."""
    if a < 3:
        b = max(0, other(a, b))
    return b
'''


def test_each_kind_of_change_is_made_in_its_place() -> None:
    made = {(edit.kind, edit.shown(SOURCE)) for edit in edits(SOURCE)}
    assert made == {
        ("return", "if a < 3: -> return"),
        ("comparison", "a < 3 -> (a) <= (3)"),
        ("constant", "3 -> (4)"),
        ("constant", "3 -> (2)"),
        ("constant", "0 -> (1)"),
        ("constant", "0 -> (-1)"),
        ("condition", "a < 3 -> (not (a < 3))"),
        ("condition", "a < 3 -> True"),
        ("condition", "a < 3 -> False"),
        ("arguments", "a, b -> b, a"),
    }
    assert {edit.function for edit in edits(SOURCE)} == {"first"}
    for edit in edits(SOURCE):
        changed = ast.dump(ast.parse(edit.applied(SOURCE)))
        assert changed != ast.dump(ast.parse(SOURCE))


def test_a_change_belongs_to_the_block_that_has_to_be_entered_to_reach_it() -> None:
    assert [block_of(SOURCE, line) for line in range(1, 6)] == [0, 2, 2, 4, 2]


def test_it_is_noted_which_blocks_a_test_enters(tmp_path: Path) -> None:
    out = tmp_path / "touched.json"
    test = f"{Path(__file__).relative_to(ROOT)}::{test_each_kind_of_change_is_made_in_its_place.__name__}"
    other = "tests/test_findings.py"
    environment = os.environ | {"MQSTORE_TOUCHED": str(out), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutation.touched", test, other]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    touched = json.loads(out.read_text(encoding="utf-8"))
    assert touched.pop(test)[1] == []
    source = (ROOT / "src" / "mqstore" / "findings.py").read_bytes()
    for _, entered in touched.values():
        assert all(each.rpartition(":")[0].endswith(".py") for each in entered)
    lines = {int(each.rpartition(":")[2]) for _, entered in touched.values() for each in entered if each.startswith("findings.py:")}
    assert lines
    assert all(block_of(source, line) == line for line in lines)


def test_mutants_of_the_product_compile_and_a_seed_draws_the_same() -> None:
    mutants = list(drawn(ROOT / "src" / "mqstore", "rocketmq/recovery", range(20)))
    for _, path, edit in mutants:
        compile(edit.applied(path.read_bytes()), path, "exec")
    assert mutants[3:5] == list(drawn(ROOT / "src" / "mqstore", "rocketmq/recovery", range(3, 5)))


def test_kernels_are_drawn_by_themselves() -> None:
    for below, among in (("", False), ("kernels/common", True)):
        places = {path.relative_to(ROOT / "src" / "mqstore").parts[0] for _, path, _ in drawn(ROOT / "src" / "mqstore", below, range(60))}
        assert ("kernels" in places, len(places) == 1) == (among, among)


def test_many_tests_may_be_named(tmp_path: Path) -> None:
    tests = ["tests/test_shown.py"] * 20
    command = [sys.executable, "-m", "mutation", "--seconds", "-1", "--state", str(tmp_path), "--tests", *tests]
    printed = subprocess.run(command, cwd=ROOT / "tests", check=True, capture_output=True, text=True).stdout
    assert "| all | 0 |" in printed


def test_what_lasts_is_of_each_kind_and_is_drawn_again_without_a_file(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.py").write_bytes(SOURCE)
    both = {edit.named(path.relative_to(tmp_path), SOURCE) for path, edit in lasting(tmp_path, "", 2)}
    alone = {edit.named(Path("a.py"), SOURCE) for _, edit in lasting(tmp_path, "a.py", 2)}
    assert len(both) == len(KINDS) * 2
    assert {name for name in both if name.startswith("a.py")} < alone


def test_a_timeout_is_noticed_and_an_equivalent_mutant_does_not_count() -> None:
    outcomes = ["failed", "timeout", "survived", "untouched", "equivalent"]
    rows = table([{"kind": "return", "outcome": each} for each in outcomes], "abc").splitlines()
    assert rows[-1] == "| all | 5 | 2 (50.0%) | 1 | 1 | 1 | abc |"


def test_each_equivalent_mutant_has_its_reason() -> None:
    assert all(" | " in mutant and reason for mutant, reason in equivalents().items())
