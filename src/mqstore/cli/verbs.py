"""The commands: where each is, and the line that `mqstore --help` shows for it.

Running a command loads its module only; the list of all commands loads none.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A command. module: below `mqstore.cli`. panel: its part of the list; empty for a name of mqadmin's, which the list leaves out."""

    name: str
    module: str
    panel: str
    summary: str


VERBS = (
    Verb(
        "inspect",
        "read.inspect",
        "Read",
        "Show what a directory holds: broker and version, files, settings, shutdown, counts, times, and whether a broker starts on it.",
    ),
    Verb(
        "diagnose",
        "read.checks",
        "Read",
        "Show whether a broker starts on a store, what it loses and delivers again, and what to run next. Changes nothing.",
    ),
    Verb(
        "verify",
        "read.checks",
        "Read",
        "Check every record, queue entry and index entry, and each against the others. RabbitMQ: journals, segments and message files.",
    ),
    Verb("usage", "read.checks", "Read", "Count bytes and messages by topic, queue, day or key, and show what each log file retains."),
    Verb(
        "messages",
        "read.messages",
        "Read",
        "List all messages, one row each: in log order; RabbitMQ: by vhost, queue, priority and position.",
    ),
    Verb(
        "get", "read.messages", "Read", "Show one message in full, by physical offset, message id, unique key, or its position in a queue."
    ),
    Verb("find", "read.messages", "Read", "Find the messages that hold a text: did this order go through?"),
    Verb("queue", "read.queues", "Read", "List the entries of a consume queue; RabbitMQ: the index entries of a queue."),
    Verb(
        "topics",
        "read.queues",
        "Read",
        "List topics and their queues: offsets, messages, bytes, and the time of the newest message; RabbitMQ: vhosts and queues.",
    ),
    Verb(
        "members",
        "read.members",
        "Read",
        "Compare the members of quorum queues in the directories of several nodes: which one is furthest, what only one of them has.",
    ),
    Verb("groups", "read.queues", "Read", "List consumer groups with the committed offset and lag of each queue; --reset moves one."),
    Verb(
        "timers",
        "read.queues",
        "Read",
        "List messages with an arbitrary delay (timer wheel and RocksDB timers of 5.x): when each is due, and whether it waits.",
    ),
    Verb("query", "read.query", "Read", "Find messages by key as the broker would, and explain an empty or short answer."),
    Verb("sql", "read.sql", "Read", "Run a SQL query over the tables of a store; only the columns and messages that it needs are read."),
    Verb(
        "rebuild",
        "jobs.rebuild_export",
        "Make",
        "Rebuild consume queues, index and checkpoint from the commit log, into a new store in OUT.",
    ),
    Verb(
        "export",
        "jobs.rebuild_export",
        "Make",
        "Export the message table as Parquet, JSON lines or CSV; each row names the file and position it came from.",
    ),
    Verb(
        "convert",
        "write.convert",
        "Make",
        "Convert a store's classic queues for another version of RabbitMQ, in a new directory that a broker can start from.",
    ),
    Verb(
        "rescue",
        "write.rescue",
        "Read",
        "Prepare a node's queues, streams and definitions for a new node of any version, with the steps to take.",
    ),
    Verb(
        "salvage",
        "jobs.salvage",
        "Read",
        "Recover every intact message from a damaged store, each with its verdict; also from files, nameless pieces and disk images.",
    ),
    Verb(
        "replay",
        "jobs.replay",
        "Write",
        "Send messages again, each confirmed before the next: to a RocketMQ or AMQP broker, or into a store.",
    ),
    Verb(
        "lookup",
        "read.lookup",
        "Make",
        "Look up the keys listed in a file: one row per key and message, and one row with the reason for each key without a message.",
    ),
    Verb(
        "follow",
        "jobs.follow",
        "Make",
        "Follow a growing commit log until Ctrl-C: every message arrives in OUT exactly once, even if either side crashes.",
    ),
    Verb(
        "repair",
        "write.repair",
        "Write",
        "Repair a store in place: list the changes, make them, or take them back. Without --apply or --undo nothing is changed.",
    ),
    Verb("put", "write.put", "Write", "Put one message into a store, as a broker does."),
    Verb("load", "write.load", "Write", "Put many messages into a store, as a broker does: from JSON lines or Parquet."),
    Verb("serve", "serve", "Serve", "Serve a store to RocketMQ clients: name server and broker at one address, until Ctrl-C."),
    Verb(
        "console",
        "console",
        "Serve",
        "Show stores in a browser until Ctrl-C: messages by topic, time, key and id, explained queries, damage maps, usage, lag.",
    ),
    Verb(
        "demo",
        "demo",
        "Help",
        "Show everything in half a minute, on a killed broker's store: inspect, verify, explain, rebuild, query again, export, convert.",
    ),
    Verb("help", "guidance", "Help", "Show the help of a command, of `output` (the options of every command), or of all commands."),
    Verb("completion", "guidance", "Help", "Print the script with which a shell completes commands, options and paths."),
    Verb("queryMsgByKey", "read.mqadmin", "", "Same as `query`."),
    Verb("queryMsgById", "read.mqadmin", "", "Same as `get --id`."),
    Verb("queryMsgByUniqueKey", "read.mqadmin", "", "Same as `get --unique`."),
    Verb("queryMsgByOffset", "read.mqadmin", "", "Same as `get -t --queue --at`."),
    Verb("printMsg", "read.mqadmin", "", "Same as `messages --topic --body text`."),
    Verb("topicList", "read.mqadmin", "", "List the names of all topics that have a queue or a configuration."),
    Verb("topicStatus", "read.mqadmin", "", "Same as `topics -t`."),
    Verb("consumerProgress", "read.mqadmin", "", "Same as `groups`."),
    Verb("queryCq", "read.mqadmin", "", "Same as `queue --from -n`."),
    Verb("sendMessage", "read.mqadmin", "", "Same as `put`."),
)
