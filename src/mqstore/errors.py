"""Errors: one root, few children; each message is a sentence that says what to do next.

Damaged bytes in a store never raise: readers report them as `mqstore.findings.Damage`.
What raises is what stops the work as a whole: a path that is no store, a missing
permission, a target that must not be overwritten, a missing Java.
"""

from __future__ import annotations

__all__ = [
    "CannotOpenError",
    "MqstoreError",
    "NotAStoreError",
    "NotFoundError",
    "PipelineError",
    "RefusedError",
    "TargetError",
    "UnsupportedError",
    "UsageError",
]


class MqstoreError(Exception):
    """Root of every error this package raises on purpose. `str(error)` is one sentence for a person."""


class UsageError(MqstoreError):
    """The question itself cannot be answered: an unknown column, an inverted range, a bad option."""


class CannotOpenError(MqstoreError):
    """The path exists or should exist, but cannot be read: no permission, an I/O error, a file in place of a directory."""


class NotAStoreError(CannotOpenError):
    """The directory is readable, but nothing in it looks like a store of a known broker."""


class UnsupportedError(MqstoreError):
    """The store, or a part of it, is of a kind that is recognised but not read. Names the part."""


class NotFoundError(MqstoreError):
    """One asked-for thing (a message, a queue) is not in the store."""


class RefusedError(MqstoreError):
    """The broker would not come up on this directory, so there is nothing that it would answer. Says why."""


class TargetError(MqstoreError):
    """The target of a writing command cannot be used: it exists, it is full, it is not writable."""


class PipelineError(MqstoreError):
    """A Spark job could not start or failed; the sentence names the cause (a missing Java, a failed task)."""
