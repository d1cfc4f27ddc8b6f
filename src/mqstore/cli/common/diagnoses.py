"""What `diagnose` prints for either family, and its exit status for a store that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mqstore.cli.common.output import Output
from mqstore.errors import CannotOpenError, MqstoreError, UnsupportedError

if TYPE_CHECKING:
    from mqstore.diagnosis import Advice, Diagnosis

SHOWN = 20


class NotReadableError(MqstoreError):
    """There is no diagnosis, because the store cannot be read. Exit status 3."""


@contextmanager
def answering() -> Iterator[None]:
    """Turn the errors of a store that cannot be read into NotReadableError."""
    try:
        yield
    except (CannotOpenError, UnsupportedError) as error:
        raise NotReadableError(str(error)) from error
    except OSError as error:
        raise NotReadableError(f"{error.filename or 'the operating system'}: {error.strerror or error}") from error


def show_advice(out: Output, advice: Advice) -> None:
    """Print the end of another command's output: the one command to run next, and why."""
    out.next_step(f"{advice.why}.", advice.next)


def show_diagnosis(out: Output, found: Diagnosis) -> int:
    """Print a diagnosis and return the exit status."""
    if not out.is_text:
        out.report(found.as_dict())
        return found.status
    out.line(found.headline, style="bold")
    out.next_step(f"{found.why}.", found.next)
    if found.rules != found.version:
        out.line(f"Answered by the rules of {found.rules}.")
    if found.changes and found.starts:
        out.line()
        out.line(
            "What the broker does to the files when it starts:" if found.family == "rocketmq" else "What the node does when it starts:"
        )
        for change in out.first(found.changes, SHOWN):
            out.line(f"  {change}")
        out.more_rows(len(found.changes) - len(out.first(found.changes, SHOWN)))
    if found.unknown:
        out.line()
        out.line("Not known:")
        for sentence in found.unknown:
            out.line(f"  {sentence}")
    if found.evidence:
        out.line()
        shown = out.first(found.evidence, SHOWN)
        out.line("Evidence:")
        for item in shown:
            where = item.file if not item.length and not item.offset else f"{item.file} at {item.offset}"
            out.line(f"  {item.finding}: {item.detail}" if item.file == "." else f"  {item.finding}, {where}: {item.detail}")
        out.more_rows(len(found.evidence) - len(shown))
    return found.status
