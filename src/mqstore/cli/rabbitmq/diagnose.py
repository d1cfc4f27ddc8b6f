"""`diagnose` on a RabbitMQ store: whether a node starts on it, and which messages it does not deliver."""

from __future__ import annotations

from mqstore.cli.common.arguments import Store
from mqstore.cli.common.diagnoses import answering, show_diagnosis
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import DiagnoseOptions
from mqstore.cli.rabbitmq.store import open_rabbitmq

__all__ = ["diagnose"]


def diagnose(out: Output, store: Store, options: DiagnoseOptions) -> int:
    """Show whether a node starts on a store, which messages it loses, and what to run next. Changes nothing."""
    with answering():
        from mqstore.rabbitmq.diagnosis.diagnosis import diagnose as answer

        opened = open_rabbitmq(store, names=options.names)
        with out.progress("diagnosing", "index entries") as progress:
            found = answer(opened, options.for_version, progress=progress)
    return show_diagnosis(out, found)
