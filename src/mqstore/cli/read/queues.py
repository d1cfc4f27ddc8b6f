"""`topics`, `queue`, `groups` and `timers`: queues with their bounds, entries with their state, groups with their lag, delayed messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import AsVersion, Config, Store, ViewName, ViewOption, at_microseconds, at_time, option
from mqstore.cli.common.command import open_either, open_store, open_view, verb
from mqstore.cli.common.options import OnlyTopic, QueueOptions, TopicsOptions, queue_number
from mqstore.cli.common.output import Output
from mqstore.errors import RefusedError, UsageError
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import count

if TYPE_CHECKING:
    from mqstore.findings import Damage
    from mqstore.rabbitmq.quorum.queue import QuorumQueue
    from mqstore.store import StorePlace
    from mqstore.stores.rabbitmq import RabbitMQ
    from mqstore.stores.rocketmq import RocketMQ

_NO_GROUPS = (
    "it has no consumer groups, and acknowledged messages are removed from the queue; `mqstore topics` lists what each queue still has"
)
TIMER_STATES = ("waiting", "delivered", "recalled", "unknown")

# topics


def topics(out: Output, store: Store, options: TopicsOptions) -> int:
    """List topics and their queues: offsets, messages, bytes, and the time of the newest message; RabbitMQ: vhosts and queues.

    Exit status 1 if files of these queues or of the log are missing or cannot be read.
    """
    now = time.time_ns() // 1000 if options.at is None else at_microseconds(options.at)
    opened = open_either(store, options, now=now)
    return _topics(out, opened, options) if opened.family == "rocketmq" else _queues(out, opened, options)


def _topics(out: Output, opened: RocketMQ, options: TopicsOptions) -> int:
    from mqstore.report.queues import topics_table
    from mqstore.rocketmq.listing import TOPIC_NAMES, bare_topics, no_topics_sentence, topic_rows, unread_files
    from mqstore.rocketmq.store.compacted import compacted_topics

    view = open_view(out, opened, options.view, options.as_version)
    view.require_queues()
    if view.log_elsewhere is not None:
        out.note(f"how many messages the queues have {view.log_elsewhere.sentence}")
    out.notes(compacted_topics(opened.directory))
    rows = topic_rows(view, options.topic)
    if not out.is_text:
        out.records(TOPIC_NAMES, rows)
        return _note_damage(out, unread_files(opened, options.topic), with_offset=False) or int(view.log_elsewhere is not None)
    shown = list(rows)
    out.show((topics_table(opened.family, shown),))
    names = {row["topic"] for row in shown}
    if shown:
        total = sum(row["messages"] for row in shown)
        out.line(f"{count(len(names), 'topic')}, {count(len(shown), 'queue')}, {count(total, 'message')}", style="bold")
    bare = bare_topics(opened, names, options.topic)
    if bare:
        named = out.first(bare, 8)
        more = f" and {len(bare) - len(named)} more (-v lists them)" if len(named) < len(bare) else ""
        out.line(f"configured, without a consume queue: {', '.join(named)}{more}")
    elif not shown:
        out.line(no_topics_sentence(opened, view, options.topic))
    return _note_damage(out, unread_files(opened, options.topic), with_offset=False) or int(view.log_elsewhere is not None)


def _queues(out: Output, opened: RabbitMQ, options: TopicsOptions) -> int:
    from mqstore.rabbitmq.listing import NOT_READ, QUEUE_NAMES, queue_rows, totals
    from mqstore.report.queues import topics_table

    shown = list(queue_rows(opened, options.vhost, options.queue, unread=True))
    damage = (*opened.unread, *opened.definitions.damage)
    if options.view is ViewName.RECOVERED:
        shown = [row for row in shown if not row["refused"]]
    sums = totals(shown)
    bad = bool(sums.lost) or any(row["refused"] for row in shown)
    if not out.is_text:
        out.records(QUEUE_NAMES, shown)
        return _note_damage(out, damage) or int(bad)
    out.show((topics_table(opened.family, shown),))
    if not shown:
        unknown = opened.unknown_name(options.vhost, options.queue)
        filtered = f"no queue matches: {unknown}" if unknown else "no queue matches; without filters all are listed"
        out.line(filtered if options.vhost or options.queue else "no queues: this store has no queue directory")
        return _note_damage(out, damage)
    vhosts, others = len({row["vhost"] for row in shown}), sum(row["start"] == NOT_READ for row in shown)
    more = f"; {count(others, 'queue')} not read" if others else ""
    out.line(f"{count(vhosts, 'vhost')}, {count(sums.queues, 'queue')}, {count(sums.messages, 'message')}{more}", style="bold")
    for sentence in sums.sentences:
        out.line(f"{sentence}.")
    for each in opened.vhosts:
        for sentence in each.refusals[:1]:
            out.note(f"the broker would not start vhost {each.name!r}: {sentence}")
    return _note_damage(out, damage) or int(bad)


def _note_damage(out: Output, damage: Sequence[Damage], *, with_offset: bool = True) -> int:
    """Print findings as notes. Returns the exit status."""
    out.notes(f"{item.file}{f' at {item.offset}' if with_offset else ''}: {item.detail}" for item in damage)
    return 1 if damage else 0


# queue


def queue(out: Output, store: Store, options: QueueOptions) -> int:
    """List the entries of a consume queue; RabbitMQ: the index entries of a queue.

    The state shows whether an entry points to its record: ok, expired (the log starts later), filling, unwritten, beyond-log,
    no-record, or mismatch (a record with another queue, offset or size). RabbitMQ: ready, delivered, acknowledged, missing, damaged,
    duplicate, or hidden (after damage that the broker does not read past). Of a quorum queue every message in its log is listed, those
    that have left it with the reason and the entry that did it.
    """
    opened = open_either(store, options)
    return _entries(out, opened, options) if opened.family == "rocketmq" else _index_entries(out, opened, options)


def _entries(out: Output, opened: RocketMQ, options: QueueOptions) -> int:
    from mqstore.report.queues import entries_table
    from mqstore.rocketmq.listing import BAD_STATES, ENTRY_NAMES, entry_rows

    number = queue_number(options.queue_id, "QUEUE_ID")
    view = open_view(out, opened, options.view, options.as_version)
    of = view.queue(options.topic, number)
    low = of.min_offset if options.start is None else max(options.start, of.min_offset)
    high = of.max_offset if options.stop is None else min(options.stop, of.max_offset)
    if options.limit is not None:
        high = min(high, low + options.limit)
    bad: Counter[str] = Counter()
    rows = _counting(entry_rows(opened, view, of, low, high), Counter(), bad, BAD_STATES)
    names = (*ENTRY_NAMES, "messages") if of.batch else ENTRY_NAMES
    if out.is_text:
        messages = count(of.max_offset - of.min_offset, "message")
        out.line(f"topic {options.topic}, queue {number}: queue offsets {of.min_offset} to {of.max_offset} ({messages})")
        out.show((entries_table(names, rows),))
    else:
        out.records(names, rows)
    if bad:
        out.note(
            f"entries that do not point to their record: {_by_state(bad)}; `mqstore verify` reports details, "
            "`mqstore rebuild` rebuilds the queue"
        )
    return 1 if bad else 0


def _index_entries(out: Output, opened: RabbitMQ, options: QueueOptions) -> int:
    from mqstore.rabbitmq.listing import BAD_STATES, ENTRY_NAMES, entry_rows
    from mqstore.report.queues import index_entries_table, index_entries_title

    if members := opened.quorum_members(options.topic, options.queue_id):
        return _logged_messages(out, members, options)
    directories = opened.queue(options.topic, options.queue_id)
    chosen = QueueSelection(
        vhosts=frozenset({options.topic}), queues=frozenset({options.queue_id}), from_seq=options.from_seq, to_seq=options.to_seq,
        everything=True, recovered=True if options.view is ViewName.RECOVERED else None,
    )  # fmt: skip
    levels = (rows for rows in opened.rows(chosen) if options.priority in (None, rows.priority_level))
    every = (row for rows in levels for row in entry_rows(rows))
    states: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    rows = _counting(islice(every, options.limit), states, bad, BAD_STATES)
    if out.is_text:
        out.show((index_entries_title(directories),))
        out.show((index_entries_table(rows, priorities=directories[0].priority_level is not None),))
        out.line(_by_state(states) or "no entry", style="bold")
    else:
        out.records(ENTRY_NAMES, rows)
    if bad:
        out.note(f"entries that do not point to their message: {_by_state(bad)}")
    return 1 if bad else 0


def _logged_messages(out: Output, members: Sequence[QuorumQueue], options: QueueOptions) -> int:
    from mqstore.rabbitmq.quorum.rows import LOG_COLUMNS, log_rows
    from mqstore.report.queues import log_rows_table, member_sentences

    if options.priority is not None:
        raise UsageError(f"--priority does not apply to quorum queue {options.queue_id!r}: its messages have no levels in the files")
    states = [member.replay() for member in members]
    pairs = list(zip(members, states, strict=True))
    every = (row for pair in pairs for row in log_rows(*pair, options.from_seq, options.to_seq))
    if options.view is ViewName.RECOVERED:
        every = (row for row in every if row["recovered"])
    counted: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    rows = _counting(islice(every, options.limit), counted, bad, frozenset())
    if out.is_text:
        out.show(part for pair in pairs for part in member_sentences(*pair))
        out.show((log_rows_table(rows),))
        left = sum(number for state, number in counted.items() if " at index " in state)
        held = _by_state({state: number for state, number in counted.items() if " at index " not in state})
        out.line(", ".join(filter(None, (held, f"{left:,} gone" if left else ""))) or "no message", style="bold")
    else:
        out.records(LOG_COLUMNS, rows)
    for state in states:
        out.notes(state.uncertain)
    return _note_damage(out, list(dict.fromkeys(item for state in states for item in state.damage)))


def _counting(
    rows: Iterator[dict[str, Any]], states: Counter[str], bad: Counter[str], bad_states: frozenset[str]
) -> Iterator[dict[str, Any]]:
    """Yield rows, and count their states. A transient message is dropped at every start, whatever its entry points to."""
    for row in rows:
        states[row["state"]] += 1
        if row["state"] in bad_states and row.get("fate") != "transient":
            bad[row["state"]] += 1
        yield row


def _by_state(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))


# groups


def groups(
    out: Output,
    store: Store,
    group: Annotated[str | None, option("--group", "-g", help="Only this consumer group.")] = None,
    topic: OnlyTopic = None,
    reset: Annotated[str | None, option("--reset", metavar="GROUP", help="Move this group in --topic; changes the store.")] = None,
    to: Annotated[
        str | None,
        option("--to", metavar="WHERE", help="With --reset: earliest, latest, a time (ms or ISO), or a queue offset (below 10^12)."),
    ] = None,
    queue_id: Annotated[int | None, option("--queue", min=0, help="With --reset: only this queue.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --reset: also forward, past unread messages, and where the group has no offset.")
    ] = False,
    at: Annotated[str | None, at_time("is in hand")] = None,
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """List consumer groups with the committed offset and lag of each queue; --reset moves one.

    State: ok, below-min (messages expired before they were consumed: expired_unread says how many), above-max (the queue has lost
    messages), no-queue, no-topic. Of pop consumers: in_hand (popped, not acknowledged), waiting (as well, and their time is over).

    --reset writes config/consumerOffset.json of a store that no broker is using, and prints each queue's offset before and after.
    The queues are taken as a broker would have them after loading. State: moved, same, kept (only --force moves it).
    """
    from mqstore.report.queues import groups_table
    from mqstore.rocketmq.listing import GROUP_NAMES, list_groups

    opened = open_store(store, config, _NO_GROUPS)
    if reset is not None:
        if group is not None and group != reset:
            raise UsageError("--reset already names the group; leave --group out")
        if topic is None or to is None:
            raise UsageError("--reset needs --topic, and --to with earliest, latest, a time or a queue offset")
        return _reset(out, opened, (reset, topic, to), queue_id, force=force, as_version=as_version)
    if to is not None or queue_id is not None or force:
        raise UsageError("--to, --queue and --force need --reset GROUP")
    refused: RefusedError | None = None
    try:
        looked_at = open_view(out, opened, view, as_version)
    except RefusedError as error:
        # the offsets are in a separate file, which the broker reads before it gives up on the log
        refused = error
        looked_at = opened.view()
        out.note(f"{error}; the offsets are compared with the queues as they are on disk")
    now = at_microseconds(at)
    listed = list_groups(opened, looked_at, group, topic, None if now is None else now // 1000)
    out.notes(looked_at.pops.notes)
    for note in listed.notes:
        out.note(note)
    if out.is_text:
        out.show((groups_table(listed.rows),))
        if listed.empty:
            out.line(listed.empty)
    else:
        out.records(GROUP_NAMES, listed.rows)
    return 1 if listed.findings or refused else 0


def _reset(out: Output, opened: RocketMQ, move: tuple[str, str, str], queue_id: int | None, *, force: bool, as_version: str | None) -> int:
    """Move a group, and print the changes. move: the group, the topic, and where to. Returns status 1 if a queue needs --force."""
    from mqstore.report.queues import reset_table
    from mqstore.rocketmq.live.group_reset import RESET_NAMES

    report = opened.reset_group(*move, queue=queue_id, force=force, version=as_version, observer=out)
    if out.is_text:
        out.show((reset_table(report.rows),))
        done = f"group {report.group}, topic {report.topic}: {count(report.moved, 'queue')} moved to {move[2]}"
        written = f"{report.file} is written, the previous one is its .bak" if report.file else "nothing is written"
        out.line(f"{done}; {written}", style="bold")
    else:
        out.records(RESET_NAMES, report.rows)
    if report.kept:
        out.note(f"{count(report.kept, 'queue')} not moved: the group would skip messages there, or has no offset yet; --force moves it")
    return 1 if report.kept else 0


# timers


def timers(
    out: Output,
    store: Store,
    topic: OnlyTopic = None,
    state: Annotated[
        str | None, option("--state", metavar="STATE", help="Only messages in this state: waiting, delivered, recalled or unknown.")
    ] = None,
    config: Config = None,
) -> int:
    """List messages with an arbitrary delay (timer wheel and RocksDB timers of 5.x): when each is due, and whether it waits.

    State: waiting, delivered (to its topic), recalled (by its producer), or unknown (what shows it is missing or not read). The
    physical offset is that of the record that waits in topic rmq_sys_wheel_timer. Messages with a delay level are in topic
    SCHEDULE_TOPIC_XXXX instead. On a RabbitMQ node: messages that the delayed-message plug-in holds.
    """
    from mqstore.places import find_store
    from mqstore.report.queues import timers_table
    from mqstore.rocketmq.store.timers import TIMER_NAMES, Timers
    from mqstore.stores.rocketmq import RocketMQ

    if state not in (None, *TIMER_STATES):
        raise UsageError(f"--state {state} is not a state; the states are waiting, delivered, recalled and unknown")
    place = find_store(store)
    if place.family == "rabbitmq":
        if topic is not None or config is not None:
            raise UsageError(f"--topic and --config do not apply to a RabbitMQ store, which {store} is")
        return _delayed(out, place, state)
    opened = RocketMQ.at(place, config=config)
    opened.require_directory_for("the list of timer messages")
    listed = Timers(opened)
    states: Counter[str] = Counter()
    chosen = (row._asdict() for row in listed.rows() if topic in (None, row.topic) and state in (None, row.state))
    rows = _counting(chosen, states, Counter(), frozenset())
    if out.is_text:
        out.show((timers_table(rows),))
        total = sum(states.values())
        out.line(f"{count(total, 'message')}: {_by_state(states)}" if total else "no messages with an arbitrary delay", style="bold")
    else:
        out.records(TIMER_NAMES, rows)
    for note in listed.notes():
        out.note(note)
    return 1 if listed.unread or listed.file_findings or listed.unread_places or listed.log_elsewhere else 0


def _delayed(out: Output, place: StorePlace, state: str | None) -> int:
    """List the messages that the plug-in for delayed messages of a RabbitMQ node holds."""
    from mqstore.rabbitmq.delayed import DELAYED_NAMES, PLUGIN, delayed_of
    from mqstore.report.queues import delayed_table
    from mqstore.stores.rabbitmq import RabbitMQ

    store = RabbitMQ.at(place)
    tables = delayed_of(store)
    states: Counter[str] = Counter()
    every = (message.row() for table in tables for message in table.messages)
    rows = _counting((row for row in every if state in (None, row["state"])), states, Counter(), frozenset())
    undecoded = sum(message.stored is None for table in tables for message in table.messages)
    if out.is_text:
        out.show((delayed_table(rows),))
        total = sum(states.values())
        out.line(f"{count(total, 'message')}: {_by_state(states)}" if total else "no delayed messages of a plug-in", style="bold")
    else:
        out.records(DELAYED_NAMES, rows)
    damage = [item for table in tables for item in table.damage]
    for item in damage:
        out.note(f"{item.file} at {item.offset}: {item.detail}")
    if any(table.messages for table in tables):
        out.note(f"a node of the name in the column node delivers them when they are due, if the plug-in {PLUGIN} is enabled")
    if undecoded:
        out.note(f"{count(undecoded, 'message')}: what is stored is not a message; its bytes are shown as they are")
    if store.node is None:
        out.note(f"whether a plug-in delays messages cannot be told without the data directory of the node, which {place.path} is not in")
        return 1
    return 1 if damage or undecoded else 0


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="queue /backup/store orders 0 --from 1000 -n 20")(queue)
    verb(app, example="topics /backup/store --view recovered")(topics)
    verb(app, example="groups /backup/store -g billing")(groups)
    verb(app, example="timers /backup/store --state waiting")(timers)
