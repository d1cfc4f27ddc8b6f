"""The answer to a key query: messages, how the index was searched, why one is missing, what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mqstore.report.messages import MessageTable, message_table
from mqstore.report.parts import Column, Field, Gap, Headline, NextStep, Parts, Sentence, Table, Tone
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.lookup.explain import DATABASE, meant
from mqstore.rocketmq.store.message_pages import batches_at
from mqstore.table.formatting import count, moment

if TYPE_CHECKING:
    from mqstore.rocketmq.format.index_file import SearchStep
    from mqstore.rocketmq.lookup.explain import KeyAnswer
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import View

STEPS_SHOWN = 40
MISSING_SHOWN = 10


def answer_parts(store: RocketMQStore, view: View, answer: KeyAnswer, *, explained: bool, everything: bool = False) -> Parts:
    """Return the answer in one sentence, the messages, the missing ones, and what to do next.

    explained: with the search in the index; everything: with all steps of it.
    """
    yield from _verdict(answer)
    if answer.messages:
        yield Gap()
        yield _messages(view, answer.messages)
    if answer.missing:
        yield Gap()
        yield Headline(f"In the log, but not found by the query ({count(len(answer.missing), 'message')}):")
        yield _messages(view, answer.missing[:MISSING_SHOWN])
        if len(answer.missing) > MISSING_SHOWN:
            yield Sentence(f"… and {len(answer.missing) - MISSING_SHOWN:,} more", Tone.FAINT)
    if explained:
        yield Gap()
        yield from search_parts(store, view, answer, None if everything else STEPS_SHOWN)
    if answer.advice:
        yield Gap()
        ways = (("inspect", ()), ("rebuild", ("--to", "NEW")), ("verify", ()), ("topics", ()))
        lines = tuple(store.command(verb, *rest) for verb, rest in ways if f"`mqstore {verb}`" in answer.advice)
        yield NextStep(f"{answer.advice}{meant(store, view, answer)}.".replace("?.", "?"), lines)


def _verdict(answer: KeyAnswer) -> Parts:
    other = len(answer.index_hits) - len(answer.messages)
    collisions = (
        f" {count(other, 'further index hit')} {'has' if other == 1 else 'have'} only the same hash."
        if other > 0 and answer.messages
        else ""
    )
    what = f"key {answer.key!r} in topic {answer.topic!r}"
    messages = count(len(answer.messages), "message")
    if answer.ok:
        sure = "The answer is complete." if answer.complete and answer.scanned else ""
        yield Headline(f"{messages} with {what}.{collisions} {sure}".rstrip(), Tone.GOOD)
    elif answer.messages:
        yield Headline(f"{messages} with {what}, but not all ({answer.reason}).{collisions}", Tone.CAUTION)
    else:
        yield Headline(f"No message for {what}: {answer.reason or 'the log was not scanned to explain it'}.", Tone.BAD)
    if answer.detail:
        yield Sentence(f"Why: {answer.detail}.")


def _messages(view: View, offsets: Iterable[int]) -> Table:
    fields, reads = message_table("rocketmq")
    first = Field(Column("physical offset", right=True), fields[0].cell)
    return MessageTable((first, *fields[1:]), reads).of(batches_at(view, offsets, reads), indent=2)


def search_parts(store: RocketMQStore, view: View, answer: KeyAnswer, shown: int | None = STEPS_SHOWN) -> Parts:
    """Return how the index was searched, file by file. shown: steps of a file that are shown, None for all."""
    files = view.index_files()
    key_hash = index_hash(answer.topic, answer.key)
    yield Headline(f"How the index was searched: {answer.topic}#{answer.key} has hash {key_hash}; newest file first, newest entry first.")
    if not files and store.database_index is None:
        yield Sentence(f"  There is no index file in the {view.name} view.")
    for file in reversed(files):
        steps = [step for step in answer.steps if step.file == file.name]
        yield Sentence(
            f"  {file.name}: {count(max(0, file.index_count - 1), 'entry')}, "
            f"physical offsets {file.begin_physical_offset} to {file.end_physical_offset}, "
            f"stored {moment(file.begin_timestamp)} to {moment(file.end_timestamp)}"
        )
        if steps:
            yield from _steps(steps, file.slot_count, shown)
        else:
            yield Sentence("    not visited: enough hits, or the previous file begins before the requested time")
    if store.database_index is not None:
        index = store.database_index
        end = moment(index.last_store_timestamp)
        yield Sentence(f"  {DATABASE}, the index in RocksDB: up to physical offset {index.last_offset}, stored {end}")
        for step in [step for step in answer.steps if step.file == DATABASE][:shown]:
            place = "" if step.physical_offset is None else f"physical offset {step.physical_offset}, stored {moment(step.timestamp)}: "
            yield Sentence(f"    {place}{step.outcome}")
    low, high = view.log_range()
    behind = (
        f", {high - answer.index_last_update_phyoffset:,} bytes past the start of the last indexed message"
        if files and high > answer.index_last_update_phyoffset
        else ""
    )
    yield Sentence(f"  The log goes from {low} to {high}{behind}.")
    if answer.scanned:
        yield Sentence("  The whole log was scanned to confirm this.", Tone.FAINT)


def _steps(steps: Sequence[SearchStep], slot_count: int, shown: int | None) -> Parts:
    first = steps[0]
    if len(steps) == 1 and first.physical_offset is None:
        yield Sentence(f"    slot {first.slot} of {slot_count}: {first.outcome}")
        return
    yield Sentence(f"    slot {first.slot} of {slot_count} leads to a chain:")
    columns = (
        Column("entry", right=True),
        Column("physical offset", right=True),
        Column("time in the index (UTC)"),
        Column("outcome", flexible=True, tone=lambda text: Tone.GOOD if text.startswith("taken") else Tone.PLAIN),
    )
    rows = (
        [
            str(step.number) if step.number else "-",
            "-" if step.physical_offset is None else str(step.physical_offset),
            moment(step.timestamp),
            step.outcome,
        ]
        for step in steps[:shown]
    )
    yield Table(columns, rows, title="Chain", indent=4)
    if shown is not None and shown < len(steps):
        yield Sentence(f"    … {len(steps) - shown:,} more steps; -v shows all", Tone.FAINT)
