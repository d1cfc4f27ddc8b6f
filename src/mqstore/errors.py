"""Errors: one root and a few subclasses. Each message is a sentence that includes the next step.

Damaged bytes in a store never raise: readers report them as `mqstore.findings.Damage`. An error is raised for what stops the work
altogether: a path that is not a store, a missing permission, a target that must not be overwritten, a missing Java.
"""

from __future__ import annotations

from collections.abc import Iterable

A_STORE = "commitlog/, or the data directory of a RabbitMQ node"
"""What to give as a store, after "the directory that contains": the end of a sentence that says what is wrong with a path."""


class MqstoreError(Exception):
    """Base class of all errors that this package raises on purpose. `str(error)` is one sentence for a person."""


class UsageError(MqstoreError):
    """The request is invalid: an unknown column, an inverted range, a bad option."""


class CannotOpenError(MqstoreError):
    """The path cannot be read: it does not exist, no permission, an I/O error, a file in place of a directory."""


class FileLostError(CannotOpenError):
    """A file is not what it was when its directory was listed: it was removed since, or replaced by another one."""


class NotAStoreError(CannotOpenError):
    """The directory is readable, but nothing in it looks like a store of a known broker."""


class UnsupportedError(MqstoreError):
    """The store, or a part of it, is of a recognized kind that is not supported. The message names the part."""


class NotFoundError(MqstoreError):
    """A requested item (a message, a queue) is not in the store."""


class RefusedError(MqstoreError):
    """The broker would not start on this directory, so there is no recovered view. The message says why.

    reasons: each in a sentence, if there may be several.
    """

    def __init__(self, sentence: str, reasons: Iterable[str] = ()) -> None:
        super().__init__(sentence)
        self.reasons = tuple(reasons)


class TargetError(MqstoreError):
    """The target of a write cannot be used: it exists, is full, or is not writable."""


class PipelineError(MqstoreError):
    """A Spark job failed or could not start; the message names the cause (a missing Java, a failed task)."""
