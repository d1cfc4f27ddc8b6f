"""A pytest plugin that notes which blocks of mqstore each passed test enters, and how long it takes: `-p mutation.touched`.

The modules are compiled with a note at the start of each block, which costs next to nothing; `sys.settrace` makes every step slow.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest
from mutation.mutants import blocks

_entered: set[str] = set()
_of_tests: dict[str, tuple[float, list[str]]] = {}
_passed: list[str] = []


class _Noted(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path))
        place = self.path.rpartition("/src/mqstore/")[2]
        for block in list(blocks(tree)):
            note = ast.parse(f"__entered__({f'{place}:{block[0].lineno}'!r})").body[0]
            told = isinstance(block[0], ast.Expr) and isinstance(block[0].value, ast.Constant)
            block.insert(int(told), ast.fix_missing_locations(ast.copy_location(note, block[0])))
        return compile(tree, self.path, "exec", dont_inherit=True)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name.partition(".")[0] == "mqstore" else None
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Noted(name, spec.loader.path)
        return spec


vars(builtins)["__entered__"] = _entered.add
sys.meta_path.insert(0, _Finder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _entered.clear()
    _passed.clear()
    began = time.monotonic()
    try:
        return (yield)
    finally:
        if _passed:
            _of_tests[item.nodeid] = time.monotonic() - began, sorted(_entered.copy())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        _passed.append(report.nodeid)


def pytest_sessionfinish() -> None:
    Path(os.environ["MQSTORE_TOUCHED"]).write_text(json.dumps(_of_tests), encoding="utf-8")
