"""Conversion with one Spark task per queue: the same bytes as in threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import golden as goldenkit

from mqstore.jobs.convert import convert
from mqstore.rabbitmq.convert import convert_vhost

pytestmark = pytest.mark.spark


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.long
@pytest.mark.versions
def test_a_conversion_on_spark_writes_what_one_in_threads_writes(tmp_path: Path) -> None:
    store = goldenkit.opened(goldenkit.case_named("3.10.8/f-mixed-features"))
    done: list[tuple[int, int]] = []
    report = convert(store, tmp_path / "spark", 2, master="local[2]", progress=lambda now, all_: done.append((now, all_)))
    here = convert_vhost.convert(store, tmp_path / "threads", 2)
    assert report.queues == here.queues
    assert contents(tmp_path / "spark") == contents(tmp_path / "threads")
    assert done[-1] == (len(report.queues), len(report.queues))
