"""Find: the messages of a RocketMQ store that hold a text, anywhere but in their topic; each with what became of it.

    pipeline.find("/backup/broker-a/store", "order-17").rows

The whole log is read, because no derived file knows the bodies, and a message that the index has lost is what one looks for. A text that is
the id of a message leads to it directly as well. With whole_key only keys that equal the text count: then the index answers for those
parts of the log for which it is proved (`rocketmq.lookup.pruning`), and only the rest is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.files.location import Url
from mqstore.findings import Damage, merge_adjacent
from mqstore.jobs.report import Progress, by_share
from mqstore.jobs.runner import Runner, choose_runner, open_for
from mqstore.rocketmq.find import FindReport, FindTask, FoundInSplit, HitStates, find_in_split
from mqstore.rocketmq.format.record import parse_message_id
from mqstore.rocketmq.get import message_rows
from mqstore.rocketmq.lookup.pruning import prune
from mqstore.rocketmq.scan.planned_files import files_seen, token_of
from mqstore.rocketmq.scan.splits import Split, bytes_to_read, check_seams, log_bytes, plan
from mqstore.rocketmq.store.compacted import COMPACTED_LOG, compacted_queues
from mqstore.rocketmq.store.log_site import lacks_of_log
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import Selection
from mqstore.table.formatting import command, count
from mqstore.table.needle import Needle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_LIMIT = 10_000


def find(
    store: str | os.PathLike[str] | RocketMQStore,
    text: str,
    *,
    whole_key: bool = False,
    body: str = "sha256",
    limit: int = DEFAULT_LIMIT,
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> FindReport:
    """Find the messages that hold a text.

    body: how rows show bodies: none, sha256, base64 or text. limit: rows to return; further hits are counted. spark,
    master, threads: as for `mqstore.jobs.verify.verify`. progress: called with (bytes of log searched, bytes of log to search).
    Raises CannotOpenError, NotAStoreError, UsageError, and PipelineError if Spark cannot run.
    """
    needle = Needle(text)
    if limit < 1:
        raise UsageError(f"the limit must be at least 1 (got {limit})")
    store = open_for(store, config, spark=spark, master=master)
    choice = choose_runner(store.path, partial(bytes_to_read, store.log), spark=spark, master=master, threads=threads)
    with choice.runner(spark) as runner:
        return replace(_run(store, runner, needle, whole_key, body, limit, progress), why=choice.why)


def _run(
    store: RocketMQStore, runner: Runner, needle: Needle, whole_key: bool, body: str, limit: int, progress: Progress | None
) -> FindReport:
    started = time.monotonic()
    pieces = every = plan(store.log, tasks=4 * runner.width)
    partly = (store.log_only and not store.one_file) or lacks_of_log(store, expired=False)
    what = "what is here of the log" if partly else f"the whole {'file' if store.one_file else 'log'}"
    how = f"{what} was searched"
    points: tuple[int, ...] = ()
    if whole_key:
        pruned = prune(store, Selection(keys=frozenset({needle.text})))
        how, points = pruned.why, pruned.points
        ranges = [(file.start, file.start + file.size) for file in pruned.files]
        pieces = tuple(piece for piece in pieces if any(piece.start < high and piece.stop > low for low, high in ranges))
        points = tuple(point for point in points if not any(piece.start <= point < piece.stop for piece in pieces))

    def task_of(split: Split, places: tuple[int, ...] | None = None) -> FindTask:
        seen = files_seen(store.log, split.start, split.stop)
        return FindTask(store.place, store.config, token, needle, split, seen, places, whole_key, body, limit)

    token = token_of(store.log)
    tasks = [task_of(piece) for piece in pieces]
    total = log_bytes(store.log, pieces) if pieces else 0

    again = {task.split.number: task for task in tasks}
    parts: list[FoundInSplit] = []
    rows: list[dict[str, Any]] = []
    damage: list[Damage] = list(store.log.findings)

    def take(outcome: FoundInSplit) -> None:
        rows.extend(outcome.rows[: max(0, limit - len(rows))])
        damage.extend(outcome.damage)
        outcome.rows, outcome.damage = [], []
        parts.append(outcome)

    if points:
        take(find_in_split(task_of(Split(-1, points[0], points[-1] + 1), points)))
    outcomes = runner.each(tasks, find_in_split, by_share(progress, total, len(tasks)))
    if len(pieces) == len(every):
        for outcome, _ in check_seams(store.log, outcomes, lambda split, first: find_in_split(again[split.number].again(first))):
            take(outcome)
    else:  # not neighbours, so that their seams cannot be compared
        for outcome in outcomes:
            take(outcome)
    view = store.view()
    hits = sum(each.hits for each in parts)
    if not whole_key:
        direct = _by_message_id(store, needle.text, body)
        if direct is not None and not any(row["physical_offset"] == direct["physical_offset"] for row in rows):
            rows.append(direct)
            hits += 1
        elif direct is not None:
            same = next(row for row in rows if row["physical_offset"] == direct["physical_offset"])
            same["matched_in"] = [*same["matched_in"], "msg_id"]
    rows.sort(key=lambda row: int(row["physical_offset"]))
    states = HitStates(view, queues_known=store.unread_queues is None, index_known=not store.log_only)
    delivered = states.delivered(rows, store.log)
    for row in rows:
        states.add_to(row, delivered)
    return FindReport(
        str(store.path),
        needle.text,
        tuple(rows),
        hits,
        sum(each.records for each in parts),
        sum(each.bytes for each in parts),
        total,
        time.monotonic() - started,
        how,
        runner.name,
        tuple(place for each in parts for place in each.buried),
        sum(each.unsearched for each in parts),
        tuple(merge_adjacent(damage)),
        sum(each.damaged_ranges for each in parts),
        (*_notes(store, rows), *_of_compacted(store, needle.text, whole_key=whole_key)),
    )


def _of_compacted(store: RocketMQStore, text: str, *, whole_key: bool) -> Iterator[str]:
    """Yield a sentence for each file of a compaction log with the text: consumers get these messages, and the log may have lost them."""
    files = [file for queue in compacted_queues(store.directory) for file in queue.files]
    if files and isinstance(store.path, Url):
        yield f"not searched: {COMPACTED_LOG}, from which consumers get the messages of compaction topics"
        return
    for file in files:
        path = store.directory.path(file)
        hits = find(path, text, whole_key=whole_key, body="none", limit=1, threads=1).hits
        if hits:
            lists = command("mqstore", "find", path, *(["--whole-key"] if whole_key else []), text)
            yield f"{count(hits, 'message')} with it in {file}, from which consumers get them: `{lists}` lists what is there"


def _by_message_id(store: RocketMQStore, text: str, body: str) -> dict[str, Any] | None:
    """Return the row of the message whose offset message id is the text, or None."""
    try:
        host, offset = parse_message_id(text.strip())
    except ValueError:
        return None
    view = store.view()
    message = view.record(offset)
    if message is None or message.store_host != host:
        return None
    row = next(iter(message_rows(view, [offset], body)), None)
    return None if row is None else row | {"matched_in": ["msg_id"], "matched_as": ["text"]}


def _notes(store: RocketMQStore, rows: Sequence[dict[str, Any]]) -> list[str]:
    notes = [f"not read: {name}" for name in store.unsupported]
    if store.unread_queues is not None and rows:
        sentence = "`verdict` and `state` do not say whether a message is in its queue"
        notes.append(f"{store.unread_sentence('consume queues', store.unread_queues)}; {sentence}")
    if rows:
        notes += store.view().pops.notes
    if store.offset_table.doubt and any(row["consumed_by"] for row in rows):
        notes.append(f"whether messages were consumed is not known: {store.offset_table.doubt}")
    if lacks := lacks_of_log(store, expired=not rows):
        notes.append(f"only what is left of the log was searched: {lacks}")
    return notes
