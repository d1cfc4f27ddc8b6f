"""`diagnose`, `verify` and `usage`: what a broker makes of a store, what is damaged, what takes the space."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mqstore.cli.common.arguments import Format, Store
from mqstore.cli.common.command import given, open_either, verb
from mqstore.cli.common.options import DiagnoseOptions, UsageOptions, VerifyOptions
from mqstore.cli.common.output import Output
from mqstore.errors import CannotOpenError, MqstoreError, UnsupportedError
from mqstore.report.checks import diagnosis_parts, usage_parts, verify_parts

DAMAGE_COLUMNS = ("file", "offset", "length", "kind", "detail", "messages")


class NotReadableError(MqstoreError):
    """There is no diagnosis, because the store cannot be read. Exit status 3."""

    exit_status = 3


@contextmanager
def _answering() -> Iterator[None]:
    """Turn the errors of a store that cannot be read into NotReadableError."""
    try:
        yield
    except (CannotOpenError, UnsupportedError) as error:
        raise NotReadableError(str(error)) from error
    except OSError as error:
        raise NotReadableError(f"{error.filename or 'the operating system'}: {error.strerror or error}") from error


def diagnose(out: Output, store: Store, options: DiagnoseOptions) -> int:
    """Show whether a broker starts on a store, what it loses and delivers again, and what to run next. Changes nothing.

    The broker's load is simulated on the files as they are, and every message of the log is looked up in the outcome.
    Exit status: 0 starts and keeps everything; 1 loses or changes something; 2 does not start; 3 the store cannot be read.
    """
    with _answering():
        opened = open_either(store, options)
        with out.progress("diagnosing", opened.progress_unit) as progress:
            answer = opened.diagnose(options.for_version, threads=options.threads, progress=progress)
    if out.is_text:
        out.show(diagnosis_parts(answer, everything=out.settings.verbose))
    else:
        out.report(answer.as_dict())
    return answer.status


def verify(out: Output, store: Store, options: VerifyOptions) -> int:
    """Check every record, queue entry and index entry, and each against the others. RabbitMQ: journals, segments and message files.

    Runs in threads of this process, which is fastest on one host, or on Spark across many; the report is the same.
    Exit status 1 if anything is damaged, or the log is not here. What a crash leaves and the broker repairs by itself at startup is a
    note, not damage.
    """
    opened = open_either(store, options, careful=True)
    begun = time.perf_counter()
    with out.progress("verifying", opened.progress_unit) as progress:
        where = given(master=options.master or ("local[*]" if options.spark else None), threads=options.threads)
        report = opened.verify(progress=progress, **where)
    seconds = time.perf_counter() - begun
    if out.format is Format.JSON:
        out.document(report.as_dict())
    elif out.is_text:
        out.show(verify_parts(report, seconds))
    else:
        out.records(DAMAGE_COLUMNS, (item.as_dict() for item in report.damage))
    return 0 if report.ok else 1


def usage(out: Output, store: Store, options: UsageOptions) -> int:
    """Count bytes and messages by topic, queue, day or key, and show what each log file retains.

    Every byte of the log is counted once: records (body, properties, overhead), fillers at the ends of files, damaged bytes, unwritten
    space. RabbitMQ: live and garbage bytes of each message file. Exit status 1 if bytes are damaged.
    """
    by = options.by
    opened = open_either(store, options)
    begun = time.perf_counter()
    with out.progress("counting", opened.usage_unit) as progress:
        where = given(master=options.master, threads=options.threads, splits=options.splits)
        report = opened.usage(by, progress=progress, **where)
    seconds = time.perf_counter() - begun
    if out.format is Format.JSON:
        out.document((report.as_dict() if by is None else report.as_dict((by,))) | {"store": str(store)})
    elif out.is_text:
        out.show(usage_parts(report, by, seconds))
    else:
        rows = report.rows(by or report.shown_by[0])
        out.records(tuple(rows[0]) if rows else report.least_names, rows)
    return 0 if report.ok else 1


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="diagnose /backup/store --for 5.3.3")(diagnose)
    verb(app, example="verify /backup/store -o json")(verify)
    verb(app, example="usage /backup/store --by day")(usage)
