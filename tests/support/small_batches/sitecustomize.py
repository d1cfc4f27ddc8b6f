"""Small batches: every constant that says how much is read, compared or written at once, lowered so that small stores meet it.

    PYTHONPATH=$PWD/tests/support/small_batches pytest tests/jobs/test_lookup.py

Python imports a module of this name when it starts, so the lowered values hold in the test run, in its workers, in those of Spark and in
commands that tests start. The value is replaced in the source of the module before it is compiled: whoever imports the constant by value,
names it as a default or computes with it meets the lowered one. Compiled kernels keep theirs, and nothing is written into a cache.

`LOWERED` and `KEPT` together name each constant in `src` that `is_batch` recognises by its name (`tests/test_small_batches.py` checks
that); `LOWERED` may name others of that sort, too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, SupportsIndex

# module without `mqstore.`: value of each constant. Mostly odd numbers, so that cuts fall anywhere among records and groups.
LOWERED = {
    "broker.runtime.acceptor": {"ACCEPTED_AT_ONCE": 1},
    "replay.sources": {"CHUNK": 61},
    "rocketmq.listing": {"CHUNK": 3},
    "cli.write.load": {"FLUSH_EVERY": 4099},
    "jobs.load_rows": {"ROWS": 3, "BYTES": 1001},
    "files.durable_file": {"COPY_CHUNK": 1009, "_PIECE": 1009},
    "files.image": {"LARGEST_READ": 1009},
    "files.read_ahead": {"WINDOW": 40961, "PIECE": 4099},
    "files.remote": {"BLOCK": 1009},
    "files.remote_fs": {"WINDOW": 4099, "SMALLEST_WINDOW": 1009},
    "files.rocksdb": {"_CHUNK": 1009},
    "files.archive": {"_BLOCK": 1009},
    "jobs.lookup": {"LEAST_PER_TASK": 3, "MOST_PER_TASK": 7, "OFFSETS_AT_ONCE": 3},
    "jobs.rebuild": {"COPIED_AT_ONCE": 1009},
    "jobs.rebuild_database": {"ENTRIES_AT_ONCE": 3, "AT_ONCE": 3},
    "kernels.common.crc32": {"_SHARED": 3},
    "pipeline.queries.duck": {"ROWS": 3, "AHEAD_BYTES": 1009},
    "pipeline.source.derived": {"ENTRIES": 7, "BATCH": 3},
    "pipeline.source.planning": {"LEAST_BYTES": 1009, "MOST_BYTES": 4099},
    "pipeline.source.rocketmq": {"POINTS": 3, "OFFSETS": 3},
    "pipeline.tail.append": {"FILE_BYTES": 4099},
    "pipeline.tail.delta": {"COMPACTED_BYTES": 4099},
    "pipeline.tail.follow": {"BATCH_BYTES": 4099},
    "rabbitmq.convert.convert_messages": {"PIECE": 1009},
    "rabbitmq.engine.live_message_store": {"MAX_BUFFERED": 1009},
    "rabbitmq.engine.live_queue": {"CHUNK": 3},
    "rabbitmq.engine.message_locations": {"BLOCK": 5},
    "rabbitmq.engine.queue_store": {"_IDS": 3},
    "rabbitmq.format.journal": {"_BLOCK": 3},
    "rabbitmq.format.message_file": {"_BLOCK": 3},
    "rabbitmq.format.queue_writer": {"PIECE": 1009},
    "rabbitmq.amqp_sender": {"WINDOW": 3, "WINDOW_BYTES": 1009, "BATCH": 2},
    "rabbitmq.carved_logs": {"BATCH_ROWS": 3, "BATCH_BYTES": 2003},
    "rabbitmq.salvage": {
        "FILE_BYTES": 2003,
        "BATCH_ROWS": 3,
        "BATCH_BYTES": 2003,
        "BLOCK": 5,
        "READ_BYTES": 1009,
        "READ_MESSAGES": 2,
    },
    "rabbitmq.streams.entries": {"BUFFERED": 1009},
    "rabbitmq.streams.rows": {"BLOCK": 3, "JOINED": 5, "JOINED_BYTES": 1009},
    "rabbitmq.quorum.raft_log": {"_BLOCK": 3, "_APART": 101},
    "rabbitmq.quorum.rows": {"BLOCK": 3, "BLOCK_BYTES": 1009},
    "rabbitmq.quorum.wal": {"_RECORDS": 3},
    "rabbitmq.store.message_store": {"ROWS_AT_ONCE": 3, "_BLOCK": 3, "_WINDOW": 101},
    "rabbitmq.store.message_table": {"_BLOCK": 3},
    "rabbitmq.store.store": {"BATCH_ROWS": 3, "BATCH_BYTES": 2003},
    "rabbitmq.store.task_groups": {"GROUP_BYTES": 2003, "LEAST_BYTES": 1009, "ROWS": 3},
    "repair.journal": {"PIECE": 1009},
    "replay.rocketmq_target": {"CHUNK": 61},
    "replay.running": {"AHEAD_BYTES": 1009},
    "rocketmq.append.batch_appender": {"ROWS_AT_ONCE": 3, "BYTES_AT_ONCE": 1009},
    "rocketmq.append.delay": {"ENTRIES_AT_ONCE": 2},
    "rocketmq.append.transactions": {"ENTRIES_AT_ONCE": 2},
    "rocketmq.delayed": {"ENTRIES_AT_ONCE": 3},
    "rocketmq.store.pop": {"_CHUNK": 3},
    "rocketmq.diagnosis.database_queues": {"PART": 3},
    "rocketmq.diagnosis.survival": {"SLOTS": 3},
    "rocketmq.store.message_pages": {"WINDOW": 1009},
    "rocketmq.dispatch.base_queue_image": {"SCAN_ROWS": 3},
    "rocketmq.dispatch.index_builder": {"BLOCK": 5, "SLOT_BLOCK": 3},
    "rocketmq.dispatch.index_image": {"_BLOCK": 5},
    "rocketmq.dispatch.rocksdb_queue_image": {"PART": 3},
    "rocketmq.dispatch.dispatcher": {"WINDOW": 3},
    "rocketmq.engine.services": {"RECORDS_AT_ONCE": 3},
    "rocketmq.engine.staged_commit": {"FLUSH_EVERY": 4099},
    "rocketmq.format.commit_log": {"CHUNK": 3, "TOGETHER": 4099, "AT_ONCE": 1009, "DROP": 4099},
    "rocketmq.format.consume_queue": {"ENTRIES_AT_ONCE": 3},
    "rocketmq.format.timer_wheel": {"_CHUNK": 96},
    "rocketmq.live.commit_log_writer": {"_DROP": 4099},
    "rocketmq.lookup.answer": {"GROUP_BYTES": 1009, "COPY_BYTES": 101, "ROWS_AT_ONCE": 3, "MISSES_AT_ONCE": 2},
    "rocketmq.find": {"PIECE": 1009},
    "rocketmq.lookup.index_probe": {"BLOCK": 5},
    "rocketmq.lookup.key_file": {"PIECE": 211},
    "rocketmq.lookup.key_set": {"AT_ONCE": 3},
    "rocketmq.lookup.pruning": {"BLOCK": 3},
    "rocketmq.lookup.tasks": {"DISPATCHED_AT_ONCE": 5, "RECORDS_AT_ONCE": 3},
    "rocketmq.rebuild_steps": {"DISPATCHED_AT_ONCE": 5},
    "rocketmq.recovery.broker_parser": {"ROOM": 5, "STRETCH": 1009},
    "rocketmq.recovery.broker_recovery": {"_DROP": 4099},
    "rocketmq.repair.log_steps": {"LARGEST_FILLER": 4099},
    "rocketmq.repair.queue_steps": {"TAIL": 3},
    "rocketmq.salvage": {"RECORDS_AT_ONCE": 3, "MAX_BATCH_BYTES": 1009},
    "rocketmq.scan.log_tail": {"MIN_PIECE": 1009, "MAX_PIECE": 4099},
    "rocketmq.scan.splits": {"MIN_SIZE": 4099, "MAX_SIZE": 10007},
    "rocketmq.store.known_ranges": {"ROOM": 1009},
    "rocketmq.store.message_table": {"MAX_BATCH_BYTES": 1009},
    "rocketmq.store.view": {"CHUNK": 3, "TOGETHER": 3},
    "rocketmq.store.timers": {"_CHUNK": 3},
    "rocketmq.verify.index_proof": {"BLOCK": 5},
    "rocketmq.verify.log_proof": {"SPLIT": 4099},
    "rocketmq.verify.queue_proof": {"ENTRIES_AT_ONCE": 3},
    "rocketmq.verify.tasks": {"PART": 10007},
    "rocketmq.verify.verification": {"DROP_EVERY": 3},
    "table.row_files": {"GROUP_BYTES": 1009, "GROUP_ROWS": 3},
    "testing.crashes": {"STATES_AT_ONCE": 3},
    "wreck.log_search": {"WINDOW": 5003, "AFTER": 1009, "BLOCK": 1009},
    "wreck.carving": {"WINDOW": 4099, "BLOCK": 101},
    "wreck.rows": {"FRAGMENT_BYTES": 2003, "FRAGMENT_RECORDS": 3},
    "wreck.search": {"SPLIT": 10007},
}

# constants with such a name that keep their value, and why
_LIMIT = "a limit: what is larger is refused, left out or done in another way, and that is tested by itself"
_FORMAT = "of a format"
_UNIT = "a unit of the operating system"
KEPT = {
    "rocketmq.diagnosis.survival.LARGEST_BATCH": "a unit counts its messages in 16 bits",
    "report.html.ROWS": _LIMIT,
    "broker.handlers.pull_filter.AT_ONCE": "how many messages a client gets at most: outside behaviour",
    "broker.handlers.pull_filter.MOST_BYTES": _LIMIT,
    "broker.handlers.queries.MOST_ENTRIES": _LIMIT,
    "wreck.carving.MESSAGES": "the room that the compiled carver asks for",
    "wreck.carving.MESSAGE_ROWS": "the number of columns",
    "rocketmq.lookup.explain.KEYS_READ": _LIMIT,
    "rocketmq.summary.TAIL": _LIMIT,
    "rabbitmq.definitions.feature_flags._MOST_BYTES": _LIMIT,
    "places._MOST_ENTRIES": _LIMIT,
    "rocketmq.store.log_site._MOST_ENTRIES": _LIMIT,
    "rabbitmq.streams.rows.BLOCK_BYTES": _LIMIT,
    "rabbitmq.store.stated_parts._MOST_BYTES": _LIMIT,
    "rocketmq.store.pop.MOST_READ": _LIMIT,
    "broker.runtime.read_only_store.READ": "a permission",
    "console.bodies.JSON_READ": _LIMIT,
    "console.jobs._BLOCK": _UNIT,
    "files.durable_file.BLOCK": _UNIT,
    "files.image.BLOCK": _UNIT,
    "files.readonly._BLOCK": _UNIT,
    "files.readonly._FEW_BYTES": _LIMIT,
    "files.archive.MOST_BYTES": _LIMIT,
    "rabbitmq.convert.convert_vhost.MOST_ENTRIES": _LIMIT,
    "rabbitmq.convert.node_check.MOST_BYTES": _LIMIT,
    "rabbitmq.quorum.member_config.MAX_CONFIG_BYTES": _LIMIT,
    "rabbitmq.quorum.raft_log.MAX_DETS_BYTES": _LIMIT,
    "rabbitmq.quorum.snapshot.MAX_SNAPSHOT_BYTES": _LIMIT,
    "rabbitmq.streams.entries.MAX_BATCH": _LIMIT,
    "rabbitmq.streams.entries.MOST_ENTRIES": _FORMAT,
    "rabbitmq.streams.entries._RECORDS": "tests compare whole parts of a chunk",
    "rabbitmq.store.clean_tables._END_BYTES": _FORMAT,
    "rabbitmq.streams.start.NO_CHUNK": _FORMAT,
    "rabbitmq.streams.stream.SEGMENT_BYTES": _FORMAT,
    "rabbitmq.streams.segment._BLOCK": "tests compare the index of whole segments",
    "rabbitmq.definitions.metadata.MAX_FILE_BYTES": _LIMIT,
    "rabbitmq.definitions.document.MAX_FILE_BYTES": _LIMIT,
    "rabbitmq.engine.engine_config.MAX_FILE_BYTES": _LIMIT,
    "rabbitmq.engine.message_locations.OVERFLOW_ROWS": "the size of a table",
    "rabbitmq.erlang.dets.SLOTS_PER_BLOCK": _FORMAT,
    "rabbitmq.erlang.etf.MAX_INTEGER_BYTES": _LIMIT,
    "rabbitmq.erlang.terms.MAX_TEXT_BYTES": _LIMIT,
    "rabbitmq.format.names.MAX_FILE_BYTES": _LIMIT,
    "rabbitmq.format.segment.MAX_ENTRIES": _FORMAT,
    "rabbitmq.format.vhost_config.DEFAULT_ENTRIES": _FORMAT,
    "rabbitmq.find.ID_PART": _LIMIT,
    "rocketmq.append.appender.INNER_BATCH": _FORMAT,
    "rocketmq.live.consume_queue_ext_writer.END_ROOM": _FORMAT,
    "rocketmq.lookup.pruning.MAX_ENTRIES": _LIMIT,
    "rocketmq.lookup.pruning.MAX_POINTS": _LIMIT,
    "rocketmq.query.index_search.SCANNED_SLOTS": "the size of a table",
    "rocketmq.scan.log_tail.GENERATION_BYTES": "less than a record has",
    "table.needle.LEAST_BYTES": _LIMIT,
    "table.needle.MOST_BYTES": _LIMIT,
    "testing.client.BATCH": "the default of a request, which tests give",
}

_BATCH = re.compile(
    r"(?:^|_)(AT_ONCE|BATCH|BLOCK|BUFFERED|BYTES|CHUNK|DROP|ENTRIES|EVERY|FILLER|IDS|MESSAGES|PART|PER_TASK|PIECE|POINTS|READ|RECORDS"
    r"|ROOM|ROWS|SHARED|SLOTS|SPLIT|STRETCH|TAIL|TOGETHER|WINDOW)$"
)


def is_batch(name: str) -> bool:
    """Return whether a constant of this name may say how much is handled at once."""
    return name.isupper() and _BATCH.search(name) is not None


class _Lowering(SourceFileLoader):
    """Compiles a module with lowered constants."""

    def path_stats(self, path: str) -> Any:
        raise OSError("a lowered module has no place in the cache of bytecode")

    def source_to_code(self, data: Any, path: Any, *, _optimization: int = -1) -> CodeType:  # type: ignore[override]
        values = dict(LOWERED[self.name.removeprefix("mqstore.")])
        tree = ast.parse(data)
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in values:
                node.value = ast.copy_location(ast.Constant(values.pop(node.targets[0].id)), node.value)
        if values:
            raise ImportError(f"{self.name} has no constant {', '.join(values)}: take it out of {__file__}")
        code: CodeType = compile(tree, path, "exec", dont_inherit=True, optimize=_optimization)
        return code


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith("mqstore.") or fullname.removeprefix("mqstore.") not in LOWERED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Lowering(fullname, spec.loader.path)
        return spec


class _Finders(list[Any]):
    """`sys.meta_path` whose first finder stays the first. That of pytest, which rewrites assertions in all of a plug-in, comes after it."""

    def insert(self, index: SupportsIndex, finder: Any) -> None:
        super().insert(max(1, int(index)), finder)


if __name__ == "sitecustomize":
    sys.meta_path = _Finders([_Finder(), *sys.meta_path])
