"""Constants that say how much is handled at once: tests meet them all lowered, and no cut by a count changes an answer.

A cut that separates what belongs together is not seen before a store is larger than the constant, and few stores of tests are.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_batches.sitecustomize import KEPT, LOWERED, is_batch

ROOT = Path(__file__).resolve().parents[1]
SMALL = ROOT / "tests" / "support" / "small_batches"


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the name, without `mqstore.`, and the syntax tree of each module that is not compiled."""
    source = ROOT / "src" / "mqstore"
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source).with_suffix("").as_posix().replace("/", ".")
        if not (name.startswith("kernels.") and path.with_suffix(".pxd").exists()):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def numbers(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the constants of a module that are whole numbers, also as `8 << 20` or `4 * 1024`."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and node.value is not None and _is_number(node.value):  # type: ignore[union-attr]
            yield target.id


def _is_number(node: ast.expr) -> bool:
    parts = list(ast.walk(node))
    wanted = (ast.BinOp, ast.operator, ast.Constant)
    return all(isinstance(part, wanted) and isinstance(getattr(part, "value", 0), int) for part in parts)


def test_every_constant_of_that_sort_is_lowered_or_kept_for_a_reason() -> None:
    every = {f"{module}.{name}" for module, tree in modules() for name in numbers(tree)}
    found = {name for name in every if is_batch(name.rpartition(".")[2])}
    lowered = {f"{module}.{name}" for module, values in LOWERED.items() for name in values}
    assert found - lowered - KEPT.keys() == set(), "name them in tests/support/small_batches/sitecustomize.py"
    assert lowered <= every
    assert KEPT.keys() <= found
    assert not lowered & KEPT.keys()
    assert all(KEPT.values())


def test_no_loop_goes_in_steps_of_a_number_without_a_name() -> None:
    """Such a step could not be lowered. Steps that belong to a format are small."""
    found = [
        f"{module}:{node.lineno}"
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and len(node.args) == 3
        if _is_number(step := node.args[2]) and (isinstance(step, ast.BinOp) or ast.literal_eval(step) > 64)
    ]
    assert found == []


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with small batches."""
    path = os.pathsep.join([str(SMALL), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def test_whoever_has_taken_a_constant_by_value_has_the_lowered_one() -> None:
    script = (
        "import inspect\nfrom mqstore.wreck.search import carve\nfrom mqstore.rocketmq.lookup import key_file, key_set\n"
        "print(key_set.AT_ONCE, key_file.AT_ONCE, inspect.signature(carve).parameters['split'].default)"
    )
    done = run("-c", script)
    small = LOWERED["rocketmq.lookup.key_set"]["AT_ONCE"]
    assert done.stdout.split() == [str(small), str(small), str(LOWERED["wreck.search"]["SPLIT"])], done.stderr
    assert small != importlib.import_module("mqstore.rocketmq.lookup.key_set").AT_ONCE


def test_a_test_run_has_the_lowered_constants(tmp_path: Path) -> None:
    """pytest imports the modules of a plug-in in a way of its own, and `mqstore` is one."""
    for number, (module, values) in enumerate(LOWERED.items()):
        lines = "".join(f"    assert module.{name} == {value}\n" for name, value in values.items())
        test = f"import mqstore.{module} as module\n\ndef test_values():\n{lines}"
        (tmp_path / f"test_{number}.py").write_text(test, encoding="utf-8")
    done = run("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), str(tmp_path))
    assert done.returncode == 0, done.stdout[-5000:]
    assert f"{len(LOWERED)} passed" in done.stdout


def test_every_module_with_lowered_constants_can_be_imported() -> None:
    script = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module('mqstore.' + name)"
    assert run("-c", script, *LOWERED).stderr == ""


SELECTION = (
    ("tests/jobs/test_lookup.py", "tests/rocketmq/lookup"),
    ("tests/jobs/test_rebuild.py", "tests/jobs/test_rebuild_database.py", "tests/rocketmq/test_rebuild_steps.py"),
    ("tests/jobs/test_verify.py", "tests/rocketmq/verify"),
    (
        "tests/wreck/test_carve.py",
        "tests/wreck/test_carved_rabbitmq_rows.py",
        "tests/wreck/test_carver.py",
        "tests/rocketmq/salvage",
        "tests/rabbitmq/salvage",
    ),
    ("tests/rocketmq/dispatch", "tests/rocketmq/append"),
    ("tests/rocketmq/store", "tests/jobs/test_find.py", "tests/jobs/test_export.py"),
    ("tests/rabbitmq/store", "tests/rabbitmq/format", "tests/jobs/test_find_in_queues.py"),
    ("tests/rabbitmq/convert", "tests/jobs/test_convert.py"),
)


@pytest.mark.long
@pytest.mark.parametrize("paths", SELECTION, ids=lambda paths: paths[0].removeprefix("tests/"))
def test_tests_pass_with_small_batches(paths: tuple[str, ...], tmp_path: Path) -> None:
    done = run("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'run'}", *paths)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert re.search(r"\d+ passed", done.stdout)
