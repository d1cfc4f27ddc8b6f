"""`demo`: a guided tour on two stores included in the package.

`data/killed-broker.tar.xz`:
RocketMQ 4.9.3's own store wrote it and was halted (no shutdown hook ran) with the last 80 messages not dispatched; then the
second half of its last record was overwritten with zeros, as a power loss leaves it. `data/killed-node.tar.xz`: a RabbitMQ 3.10.8 node with
queues of version 1, killed while it merged two message files. Every step runs the function of
the command line printed above its output.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import option
from mqstore.cli.common.command import verb
from mqstore.cli.common.options import ExportOptions, InspectOptions, MessageFilters, MessagesOptions, TopicsOptions, VerifyOptions
from mqstore.cli.common.output import Output
from mqstore.cli.jobs.rebuild_export import export, rebuild
from mqstore.cli.read.checks import verify
from mqstore.cli.read.inspect import inspect
from mqstore.cli.read.messages import messages
from mqstore.cli.read.query import ask
from mqstore.cli.read.queues import topics
from mqstore.cli.write.convert import convert
from mqstore.errors import UsageError
from mqstore.report.parts import Column
from mqstore.table.formatting import clock, command, size

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

ARCHIVE = Path(__file__).with_name("data") / "killed-broker.tar.xz"
QUEUES = Path(__file__).with_name("data") / "killed-node.tar.xz"

# stored three seconds before the last message of the log, and never dispatched
TOPIC, KEY = "orders", "OrderID421"

SQL = """\
SELECT topic, count(*) AS messages, sum(size) AS bytes, string(max(store_timestamp)) AS newest
FROM messages GROUP BY topic ORDER BY messages DESC"""

QUEUES_SQL = """\
SELECT queue, count(*) AS messages, sum(length(payload)) AS bytes, count_if(verdict <> 'intact') AS lost
FROM messages GROUP BY queue ORDER BY queue"""


class _Story:
    """Headings, sentences and command lines between the outputs of the steps."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._number = 0

    def say(self, text: str) -> None:
        self._out.line(text)

    def step(self, title: str, text: str) -> None:
        self._number += 1
        self._out.line()
        self._out.line(f"{self._number}  {title}", style="bold cyan")
        self._out.line(text)

    def show(self, words: tuple[object, ...], run: Callable[[], object]) -> None:
        """A command line, and what the command prints."""
        self._out.line()
        self._out.line("$ " + command("mqstore", *words), style="bold", whole=True)
        run()


def demo(
    out: Output,
    keep: Annotated[Path | None, option("--keep", metavar="DIR", help="A new directory in which to keep the stores and the table.")] = None,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master to run on.")] = "local[2]",
) -> int:
    """Show everything in half a minute, on a killed broker's store: inspect, verify, explain, rebuild, query again, export, convert.

    Runs on stores included in the package, which RocketMQ 4.9.3 and RabbitMQ 3.10.8 left when they were killed. Needs Java 17 for Spark.
    """
    from mqstore.pipeline.spark.failures import require_pyspark

    if not out.is_text:
        raise UsageError("demo is for people and has no machine format; run its commands with -o instead")
    require_pyspark()
    root = _demo_directory(keep)
    store, rebuilt, table = root / "store", root / "rebuilt", root / "messages"
    _unpack(ARCHIVE, store)
    story = _Story(out)
    story.say(
        "A RocketMQ 4.9.3 broker was killed while writing, and the power failed. This is its store; no broker is needed from here on."
    )
    story.say(f"Everything happens in {root}")

    story.step("What is in it?", "Names, sizes and headers are enough for a first answer; it is as fast on a store of terabytes.")
    story.show(("inspect", store), lambda: inspect(out, store, InspectOptions()))

    story.step("What is damaged?", "Every record, queue entry and index entry is checked, and each against the others.")
    story.show(("verify", store), lambda: verify(out, store, VerifyOptions()))

    story.step(
        "Why does a query find nothing?",
        f"A customer asks for order {KEY}. The broker's index has no answer, though the message was stored.",
    )
    story.show(("query", store, "-t", TOPIC, "-k", KEY, "--explain"), lambda: ask(out, store, TOPIC, KEY, explain=True))

    story.step(
        "Rebuild what is missing.",
        "Queues and index can be derived from the log. Spark rebuilds them in a new directory; the old store is not changed.",
    )
    with _spark(out, master) as spark:
        story.show(("rebuild", store, "--to", rebuilt, "--master", master), lambda: rebuild(out, store, rebuilt, master=master))

        story.step("Ask again.", "The same question to the new store. A real broker opens it as well.")
        story.show(("query", rebuilt, "-t", TOPIC, "-k", KEY), lambda: ask(out, rebuilt, TOPIC, KEY))

        story.step("The log as a table.", "All messages as Parquet, each row with the file and offset it came from, and an SQL query.")
        words = ("export", store, "--to", table, "--format", "parquet", "--master", master)
        story.show(words, lambda: export(out, store, ExportOptions(to=table, master=master)))
        rows = _run_sql(out, spark, table, SQL)
        out.table(
            (Column("topic", flexible=True), Column("messages", right=True), Column("bytes", right=True), Column("newest (UTC)")),
            ([row["topic"], str(row["messages"]), f"{row['bytes']:,}", row["newest"]] for row in rows),
        )
        _show_rabbitmq(out, story, root, spark, master)

    out.line()
    out.line("That is all it takes.", style="bold green")
    out.line(f"The stores and the table are in {root} ({_size_on_disk(root)}); remove them when you no longer need them.")
    out.next_step("your own store. It is not changed.", "mqstore inspect STORE", "mqstore verify STORE")
    return 0


def _show_rabbitmq(out: Output, story: _Story, root: Path, spark: SparkSession, master: str) -> None:
    """Show a RabbitMQ store: queues of version 1 as messages, as a table, and converted to version 2."""
    node, table, new = root / "msg_stores", root / "queued", root / "msg_stores-v2"
    _unpack(QUEUES, node)
    story.step(
        "The other broker: RabbitMQ's queues.",
        "A 3.10.8 node was killed while it merged message files. Brokers from 4.3 on cannot read such queues; here are their messages.",
    )
    story.show(("topics", node), lambda: topics(out, node, TopicsOptions()))
    first_four = MessagesOptions(filters=MessageFilters(limit=4))
    story.show(("messages", node, "--limit", 4), lambda: messages(out, node, first_four))

    story.step("Queues as a table.", "As for a log: Parquet, each row with its file, position and verdict.")
    words = ("export", node, "--to", table, "--format", "parquet", "--master", master)
    story.show(words, lambda: export(out, node, ExportOptions(to=table, master=master)))
    rows = _run_sql(out, spark, table, QUEUES_SQL)
    out.table(
        (Column("queue"), Column("messages", right=True), Column("bytes", right=True), Column("lost", right=True)),
        ([row["queue"], str(row["messages"]), f"{row['bytes']:,}", str(row["lost"])] for row in rows),
    )

    story.step("Queues of version 2.", "All messages go to a new directory that a broker can start from.")
    story.show(("convert", node, "--to", new, "--queue-version", 2), lambda: convert(out, node, new, queue_version=2))
    story.show(("topics", new), lambda: topics(out, new, TopicsOptions()))


def _demo_directory(keep: Path | None) -> Path:
    """Create the directory of the demo. Raises TargetError if it exists."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="mqstore-demo-"))
    from mqstore.files.durable import NewDirectory

    with NewDirectory(keep) as new:
        new.publish()
    return keep


def _unpack(packed: Path, target: Path) -> None:
    from mqstore.files import ReadOnlyDirectory
    from mqstore.files.archive import UnpackedArchive
    from mqstore.files.durable import NewDirectory

    archive = UnpackedArchive(packed)
    try:
        source = ReadOnlyDirectory(archive.store_root())
        with NewDirectory(target) as new:
            for relative, _ in source.walk():
                new.directory.link_or_copy(source.path(relative), relative, copy=True)
            new.publish()
    finally:
        archive.close()


def _size_on_disk(path: Path) -> str:
    from mqstore.files import ReadOnlyDirectory

    return size(sum(entry.blocks * 512 for _, entry in ReadOnlyDirectory(path).walk()))


@contextmanager
def _spark(out: Output, master: str) -> Iterator[SparkSession]:
    from mqstore.pipeline.spark.session import running

    begun = time.perf_counter()
    out.line("Spark is starting, which takes a few seconds …", style="dim")
    with running(master) as spark:
        out.line(f"… Spark {spark.version} is running, after {clock(time.perf_counter() - begun)}.", style="dim")
        yield spark


def _run_sql(out: Output, spark: SparkSession, table: Path, sql: str) -> list[Row]:
    out.line()
    for line in f"SQL> {sql}".split("\n"):
        out.line(line, style="bold")
    spark.read.parquet(table.resolve().as_uri()).createOrReplaceTempView("messages")
    return spark.sql(sql).collect()


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="demo --keep story")(demo)
