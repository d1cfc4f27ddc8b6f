"""`diagnose`: whether a broker starts on a store, what that loses, and the one command to run next."""

from __future__ import annotations

import typer

from mqstore.cli.common.arguments import Store, open_either, verb
from mqstore.cli.common.diagnoses import answering, show_diagnosis
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import DiagnoseOptions


def diagnose(out: Output, store: Store, options: DiagnoseOptions) -> int:
    """Show whether a broker starts on a store, what it loses and delivers again, and what to run next. Changes nothing.

    The broker's load is simulated on the files as they are, and every message of the log is looked up in the outcome.
    Exit status: 0 starts and keeps everything; 1 loses or changes something; 2 does not start; 3 the store cannot be read.
    """
    with answering():
        opened = open_either(store, config=options.config, names=options.names)
        with out.progress("diagnosing", opened.progress_unit) as progress:
            found = opened.diagnose(options.for_version, threads=options.threads, progress=progress)
    return show_diagnosis(out, found)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="diagnose /backup/store --for 5.3.3", panel="Read", rabbitmq=True)(diagnose)
