"""What the installed pyspark lacks of Spark's interface to data sources is refused in a sentence, before anything is done."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.golden import case_named, opened
from support.spark_api import TABLES, needs_filters, needs_streams

from mqstore.pipeline.spark import bare_api

pytestmark = pytest.mark.versions
STORE = "4.9.3/a-clean-small"


NO_SOURCES = "sys.modules['pyspark.sql.datasource'] = None"
NO_LIMITS = "import pyspark.sql.datasource; import pyspark.sql.streaming.datasource as given; del given.ReadLimit"


def run(program: str, without: str, *arguments: str) -> str:
    """Run a program in which an import fails as it does with a pyspark that does not have what is imported. Returns what it prints."""
    head = f"import sys; {without}; store, place = sys.argv[1:]\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(program), str(opened(case_named(STORE))), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_data_sources_in_python_tables_are_refused_and_jobs_run(tmp_path: Path) -> None:
    program = """
        from mqstore import pipeline
        from mqstore.errors import UnsupportedError

        for name in ("read", "register", "views", "sql", "follow", "append", "finish", "joined"):
            try:
                getattr(pipeline, name)
            except UnsupportedError as error:
                print(error)
        print(pipeline.verify(store, threads=1).checked.records)
        print(pipeline.rebuild(store, place + "/rebuilt", threads=1).ok)
        print(pipeline.export(store, place + "/out", threads=1).ok)
        print(pipeline.usage(store, threads=1).rows("topic")[0]["messages"] > 0)
        print(pipeline.lookup(store, [("orders", "a-key")], place + "/answers").hits)
        print(pipeline.convert.__name__)
    """
    lines = run(program, NO_SOURCES, str(tmp_path)).splitlines()
    assert len(set(lines[:8])) == 1
    assert "need pyspark 4.0 or later, and this is " in lines[0]
    assert lines[8:] == ["519", "True", "True", "True", "0", "convert"]


def test_a_command_that_needs_them_says_so_too(tmp_path: Path) -> None:
    program = """
        import contextlib, io
        from mqstore.cli.main import main

        sys.argv = ["mqstore", "follow", store, "--to", place + "/out", "--once"]
        with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.suppress(SystemExit):
            main()
        print(told.getvalue())
    """
    told = run(program, NO_SOURCES, str(tmp_path))
    assert told.startswith("mqstore: tables of a store in Spark, streams, sinks, follow and append need pyspark 4.0 or later")
    assert list(tmp_path.iterdir()) == []


@needs_streams
def test_without_the_limits_of_batches_a_stream_is_refused_and_a_table_is_read(tmp_path: Path) -> None:
    program = """
        from pyspark.sql.types import StructType
        from mqstore import pipeline
        from mqstore.errors import UnsupportedError
        from mqstore.pipeline.source.rocketmq import RocketMQDataSource

        source, schema = RocketMQDataSource({"path": store}), StructType().add("topic", "string")
        for attempt in (lambda: source.streamReader(schema), lambda: pipeline.follow(store, place + "/out", once=True)):
            try:
                attempt()
            except UnsupportedError as error:
                print(error)
        reader = source.reader(schema)
        print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))
    """
    one, other, rows = run(program, NO_LIMITS, str(tmp_path)).splitlines()
    assert one == other
    assert one.startswith("a stream of a store, and follow, need pyspark 4.2 or later")
    assert rows == "511"
    assert list(tmp_path.iterdir()) == []


@needs_filters
@pytest.mark.parametrize("name", ["EqualNullSafe", "EqualTo", "GreaterThan", "GreaterThanOrEqual", "In", "LessThan", "LessThanOrEqual"])
def test_comparisons_are_those_of_pyspark(name: str) -> None:
    """Where pyspark has them, its own are used."""
    import pyspark.sql.datasource as theirs

    from mqstore.pipeline.spark import source_api

    ours = getattr(bare_api, name)(("size",), 3)
    same = getattr(theirs, name)(("size",), 3)
    assert (repr(ours), ours.attribute, ours.value) == (repr(same), same.attribute, same.value)
    assert ours == getattr(bare_api, name)(("size",), 3)
    assert ours != getattr(bare_api, name)(("size",), 4)
    assert getattr(source_api, name) is getattr(theirs, name)


def test_a_pyspark_with_data_sources_has_tables() -> None:
    import importlib.util

    assert (importlib.util.find_spec("pyspark.sql.datasource") is not None) == TABLES
