"""Profiles: what differs between the versions of RocketMQ in the files of a store, in one table.

    from    rules    tags indexed   checkpoint fields   log files recovered   rewritten properties   properties of a batch
    4.3.0   4.9.3    no             3                   all                   end with a separator   not stored
    4.8.0   4.9.3    no             3                   all                   end with a separator   with each message
    4.9.1   4.9.3    no             3                   all                   do not                 with each message
    5.0.0   5.3.3    no             5                   all                   do not                 with each message
    5.2.0   5.3.3    no             5                   all                   end with a separator   with each message
    5.3.4   5.3.3    no             5                   all                   end with a separator   not stored
    5.4.0   5.3.3    yes            5                   the newest 10         end with a separator   not stored
    5.5.0   5.3.3    yes            6                   the newest 10         end with a separator   not stored

`rules` is the version that was reproduced in every detail and compared with the real broker; the versions of a row follow it. A broker
carries checkpoint fields that it does not know; so does this package. `VersionRules` has what these two do differently, one attribute for
each behaviour; no other module compares versions.

    >>> profile("4.7.1").rules, profile("5.5.0").rules, profile("5.5.0").indexes_tags
    ('4.9.3', '5.3.3', True)
    >>> version_rules("4.7.1").property_buckets, version_rules("5.5.0").property_buckets
    (16, 128)

Format: docs/formats/rocketmq.md, sections 5.6, 7.1 and 8.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mqstore.errors import UsageError

_PATCHES = {
    "4.3": 2, "4.4": 0, "4.5": 2, "4.6": 1, "4.7": 1, "4.8": 0, "4.9": 8,
    "5.0": 0, "5.1": 4, "5.2": 0, "5.3": 4, "5.4": 0, "5.5": 0,
}  # fmt: skip
RELEASES = tuple(f"{minor}.{patch}" for minor, newest in _PATCHES.items() for patch in range(newest + 1))
OLDEST, NEWEST = RELEASES[0], RELEASES[-1]


@dataclass(frozen=True, slots=True)
class VersionRules:
    """What 4.9.3 and 5.3.3 do differently in a store. The values here are those of 5.3.3."""

    version: str
    series: str = "5.x"
    # what is stored
    ends_with_separator: bool = True  # property texts of clients
    property_buckets: int = 128  # of the map from which properties are written, which decides their order
    keeps_wait: bool = True  # the property WAIT is stored
    adds_to_request: bool = True  # MSG_REGION, TRACE_ON and a missing UNIQ_KEY become properties
    keeps_store_host: bool = False  # a message that is sent back has the store host of the first one
    keeps_transaction_id: bool = True  # a half message has its unique key in __transactionId__
    joins_op_messages: bool = True  # one op message names several half messages
    has_timer_wheel: bool = True
    has_version_2: bool = True  # records of version 2, for topics of more than 127 characters
    has_property_crc: bool = True  # enabledAppendPropCRC, forceVerifyPropCRC
    # what is refused, and in which words
    limits_record: bool = False  # the largest message size is that of the record, not of the body
    limits_property_characters: bool = False  # property texts have a limit in UTF-16 units, too, which comes first
    judges_with_offsets: bool = True  # a message for light queues is refused only where their offsets are added
    spells_status_correctly: bool = True
    # light queues (multi dispatch)
    only_light_queues: bool = True  # multi dispatch is for topics %LMQ% only, whose offsets are those of their queues
    advances_unlisted: bool = True  # also messages that are in no queue take an offset of theirs
    removes_light_groups: bool = True
    # files
    takes_directories_for_files: bool = False
    deletes_empty_last_file: bool = True
    reads_within_log: bool = True  # no record is read past the end of the log
    has_batch_queues: bool = True
    bisects_minimum: bool = True  # of a queue, between the last minimum and the end of the first file
    confirms_offset: bool = True  # the checkpoint states up to where the log is confirmed
    writes_checkpoint_each_second: bool = True
    writes_pid: bool = True  # into the file abort, and its contents before into abort.bak
    syncs_index_headers: bool = True  # when it closes
    dispatches_flushed_only: bool = True  # with SYNC_FLUSH
    # configuration files
    writes_every_field: bool = True  # also those that have their usual value, and the state of each table
    writes_in_place: bool = True  # after the copy to .bak; else it renames a new file
    makes_further_topics: bool = True  # rmq_sys_…, the op topic and the group of the check when a store is new
    has_further_files: bool = True
    # load and start
    compares_size_first: bool = True  # with what is left of the file, before it makes room for a record
    parses_inner_batches: bool = True
    keeps_delays_in_recovery: bool = True  # tags codes of delayed messages are times
    lists_after_clean_exit: bool = True  # what the queues lack, from the file on in which they end
    needs_properties: bool = False  # for multi dispatch: it fails on a record without any
    waits_for_dispatch: bool = False  # at its start, until everything in the log is listed
    starts_with_directory_in_index: bool = False
    # answers
    answers_from_memory_only: bool = True  # offset 0 for a new group, where the first message is in memory
    resets_at_broker: bool = True  # offsets by time, whether or not the group is there; clients follow
    far_offsets_start_over: bool = False  # an offset far beyond the end of a queue that begins at 0 continues at 0
    bisects_times: bool = True  # else the queue file is chosen by its time of modification
    reads_head_for_earliest: bool = True  # else room for two messages
    goes_on_to_next_file: bool = True  # a pull, up to a number of bytes in total


_RULES_OF_5 = VersionRules("5.3.3")
_RULES_OF_4 = VersionRules(
    "4.9.3",
    "4.x",
    ends_with_separator=False,
    property_buckets=16,
    keeps_wait=False,
    adds_to_request=False,
    keeps_store_host=True,
    keeps_transaction_id=False,
    joins_op_messages=False,
    has_timer_wheel=False,
    has_version_2=False,
    has_property_crc=False,
    limits_record=True,
    limits_property_characters=True,
    judges_with_offsets=False,
    spells_status_correctly=False,
    only_light_queues=False,
    advances_unlisted=False,
    removes_light_groups=False,
    takes_directories_for_files=True,
    deletes_empty_last_file=False,
    reads_within_log=False,
    has_batch_queues=False,
    bisects_minimum=False,
    confirms_offset=False,
    writes_checkpoint_each_second=False,
    writes_pid=False,
    syncs_index_headers=False,
    dispatches_flushed_only=False,
    writes_every_field=False,
    writes_in_place=False,
    makes_further_topics=False,
    has_further_files=False,
    compares_size_first=False,
    parses_inner_batches=False,
    keeps_delays_in_recovery=False,
    lists_after_clean_exit=False,
    needs_properties=True,
    waits_for_dispatch=True,
    starts_with_directory_in_index=True,
    answers_from_memory_only=False,
    resets_at_broker=False,
    far_offsets_start_over=True,
    bisects_times=False,
    reads_head_for_earliest=False,
    goes_on_to_next_file=False,
)
_RULES = {rules.version: rules for rules in (_RULES_OF_4, _RULES_OF_5)}
VERSIONS = tuple(_RULES)  # that were reproduced in every detail
DEFAULT_VERSION = VERSIONS[-1]  # of a new store


@dataclass(frozen=True, slots=True)
class Profile:
    """One version. rules: the version whose rules for records, queues, index and recovery it follows.

    indexes_tags: since 5.4.0 the index has an entry `topic#T#tags` as well. recovered_files: log files that a recovery looks at, from
    the newest back; None: all. ends_properties: property texts that the broker writes itself, as those of delayed messages, end with a
    separator. shares_properties: those of a producer's batch are stored with each of its messages. span: the releases that have the same
    files, as text.
    """

    version: str
    rules: str
    indexes_tags: bool
    checkpoint_fields: int
    recovered_files: int | None
    ends_properties: bool
    shares_properties: bool
    span: str

    @property
    def has_databases(self) -> bool:
        """Whether queues and index may be in RocksDB, in the form that is read and written here: since 5.4.0, as the tags in the index."""
        return self.indexes_tags

    @property
    def checks_first_record(self) -> bool:
        """Whether a recovery begins only at a log file whose first record is accepted as a whole: since 5.4.0."""
        return self.recovered_files is not None

    @property
    def cuts_queues_after_dispatch(self) -> bool:
        """Whether a load cuts all queues at the end of the log if they list it after the dispatch; before 5.4.0, if they did before it."""
        return self.recovered_files is not None

    @property
    def reads_before_empty_file(self) -> bool:
        """Whether a broker reads before the begin of a queue's last file if that has no entry, and so does not start: 5.0.0 to 5.4.0."""
        return version_rules(self.rules).bisects_minimum and not self.begins_at_flushed

    @property
    def begins_at_flushed(self) -> bool:
        """Whether an unclean recovery begins where the queues are flushed to, as a sixth field of the checkpoint says: 5.5.0."""
        return self.checkpoint_fields > 5

    @property
    def spells_maped(self) -> bool | None:
        """Whether the options for the sizes of files begin with `mapedFile`: up to 4.3.2, and not from 4.5.2 on (apache/rocketmq #1560).

        None: not known.
        """
        number = _number(self.version)
        return True if number <= (4, 3, 2) else False if number >= (4, 5, 2) else None

    @property
    def fits(self) -> tuple[str, str]:
        """The brokers that open such a store, and what else to know before one does."""
        return _FITS[self.span]


# which brokers open the files of a span, and what else to know before one does
_FITS = {
    "4.3.0 to 4.9.8": ("4.9 and later 4.x", "5.x opens it too, and upgrades it when it writes"),
    "5.0.0 to 5.3.4": ("5.x", "do not open it with 4.x"),
    "5.4.0": ("5.4 and later", "do not open it with 4.x; 5.0 to 5.3 do not index tags"),
    "5.5.0": ("5.5", "do not open it with 4.x; 5.0 to 5.3 do not index tags"),
}

_TABLE = (
    ((4, 3, 0), "4.9.3", False, 3, None, True, False, "4.3.0 to 4.9.8"),
    ((4, 8, 0), "4.9.3", False, 3, None, True, True, "4.3.0 to 4.9.8"),
    ((4, 9, 1), "4.9.3", False, 3, None, False, True, "4.3.0 to 4.9.8"),
    ((5, 0, 0), "5.3.3", False, 5, None, False, True, "5.0.0 to 5.3.4"),
    ((5, 2, 0), "5.3.3", False, 5, None, True, True, "5.0.0 to 5.3.4"),
    ((5, 3, 4), "5.3.3", False, 5, None, True, False, "5.0.0 to 5.3.4"),
    ((5, 4, 0), "5.3.3", True, 5, 10, True, False, "5.4.0"),
    ((5, 5, 0), "5.3.3", True, 6, 10, True, False, "5.5.0"),
)


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@lru_cache
def profile(version: str) -> Profile:
    """Return the profile of a release; `4.9` is the newest release of that line. Raises UsageError, with the list of all, for other text.

    >>> profile("4.9").version, profile("5.3").version
    ('4.9.8', '5.3.4')
    """
    if version.count(".") == 1:
        version = next((release for release in reversed(RELEASES) if release.startswith(f"{version}.")), version)
    if version not in RELEASES:
        raise UsageError(f"there are no rules of version {version!r}; known are {OLDEST} to {NEWEST}: {', '.join(RELEASES)}")
    number = _number(version)
    _, rules, tags, fields, files, ends, shares, span = max((row for row in _TABLE if row[0] <= number), key=lambda row: row[0])
    return Profile(version, rules, tags, fields, files, ends, shares, span)


@lru_cache
def version_rules(version: str) -> VersionRules:
    """Return the rules that a release follows. Raises UsageError as `profile` does."""
    return _RULES[profile(version).rules]


OLDEST_WITH_DATABASES = next(release for release in RELEASES if profile(release).has_databases)
