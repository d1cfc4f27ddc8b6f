"""A pytest plugin that notes which functions of mqstore each passed test calls, and how long it takes: `-p mutation.touched`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

_called: set[CodeType] = set()
_of_tests: dict[str, tuple[float, list[str]]] = {}


def _trace(frame: FrameType, _event: str, _argument: Any) -> None:
    """Of a function only its call is noted, not its lines: the tests that call it are those that may touch any of its lines."""
    _called.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _called.clear()
    _passed.clear()
    began = time.monotonic()
    threading.settrace(_trace)
    sys.settrace(_trace)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)
        if _passed:
            _of_tests[item.nodeid] = time.monotonic() - began, sorted(filter(None, map(_name, list(_called))))


_passed: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        _passed.append(report.nodeid)


def _name(code: CodeType) -> str:
    _, found, path = code.co_filename.rpartition("/src/mqstore/")
    # what a comprehension or an inner function does is done by the function around it
    return f"{path}:{code.co_qualname.split('.<locals>')[0]}" if found else ""


def pytest_sessionfinish() -> None:
    Path(os.environ["MQSTORE_TOUCHED"]).write_text(json.dumps(_of_tests), encoding="utf-8")
