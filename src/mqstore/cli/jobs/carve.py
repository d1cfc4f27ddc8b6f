"""`salvage` of a RocketMQ log that is not where a broker expects it: single files, wrong names, nameless pieces, disk images."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Output
from mqstore.findings import Verdict
from mqstore.table.formatting import clock, command, count, pace, size

if TYPE_CHECKING:
    from mqstore.rocketmq.salvage.salvaging import Wreck

__all__ = ["carve"]

SHOWN = 20
MEANINGS = {
    Verdict.INTACT: "whole, every check passes",
    Verdict.DAMAGED: "whole, but some of their bytes are invalid",
    Verdict.DUPLICATE: "further copies, byte for byte",
}


def carve(out: Output, store: Path, options: Any) -> int:
    """Carve a source and write what was found. Returns the exit status: 1 if a record is damaged or bytes belonged to nothing."""
    from mqstore.files.archive import UnpackedArchive, is_archive
    from mqstore.rocketmq.salvage.salvaging import carve_wreck

    keep = UnpackedArchive(store) if is_archive(store) and store.is_file() else None
    with out.progress("carving") as progress:
        wreck = carve_wreck(store if keep is None else keep.store_root(), progress)
    started = time.monotonic()
    if options.as_kind is None:
        document, verdicts = _to_file(wreck, options)
    else:
        document, verdicts = _to_store(out, wreck, options)
    ok = not verdicts.get("damaged") and not wreck.gap_count
    document |= {
        "store": str(store),
        "to": options.to,
        "ok": ok,
        "verdicts": {str(each): verdicts.get(str(each), 0) for each in Verdict},
        **wreck.as_dict(),
        "seconds": round(time.monotonic() - started + wreck.seconds, 3),
    }
    if not out.is_text:
        out.report(document)
        return 0 if ok else 1
    _print(out, wreck, document, verdicts, as_store=options.as_kind is not None)
    return 0 if ok else 1


def _to_file(wreck: Wreck, options: Any) -> tuple[dict[str, Any], Mapping[str, int]]:
    from mqstore.table.columns import ROCKETMQ_COLUMNS, rocketmq_schema
    from mqstore.table.file import format_of, write_rows
    from mqstore.table.text import columns_for

    to = Path(options.to)
    chosen = format_of(to, options.format)
    as_text = chosen == "jsonl"
    batches = wreck.batches(columns_for("base64"), milliseconds=True) if as_text else wreck.batches(ROCKETMQ_COLUMNS)
    written = write_rows(batches, rocketmq_schema(ROCKETMQ_COLUMNS), to, chosen, options.verdicts or frozenset(Verdict))
    return {"format": chosen, "messages": written.rows, "bytes": written.bytes}, written.verdicts


def _to_store(out: Output, wreck: Wreck, options: Any) -> tuple[dict[str, Any], Mapping[str, int]]:
    from mqstore.rocketmq.salvage.salvaging import salvage_into_store

    version = None if options.for_version is None else options.for_version.value
    with out.progress("writing") as progress:
        verdicts = salvage_into_store(wreck, Path(options.to), version, progress)
    return {"format": "rocketmq", "messages": verdicts[str(Verdict.INTACT)]}, verdicts


def _print(out: Output, wreck: Wreck, document: dict[str, Any], verdicts: Mapping[str, int], *, as_store: bool) -> None:
    out.line(f"Salvaged {document['to']}", style="bold green" if document["ok"] else "bold yellow")
    out.line(f"{count(document['messages'], 'message')} in {clock(document['seconds'])}.")
    searched = f"{count(wreck.pieces, 'file')}, {size(wreck.bytes)} searched ({pace(wreck.bytes, wreck.seconds)})"
    stretches = "1 stretch" if wreck.stretches == 1 else f"{wreck.stretches:,} stretches"
    out.line(f"{searched}: {count(wreck.records, 'record')} in {stretches} of {count(wreck.logs, 'log')}.")
    out.line()
    columns = [Column("verdict"), Column("messages", right=True), Column("meaning", flexible=True)]
    out.table(columns, ((str(each), f"{verdicts[str(each)]:,}", MEANINGS[each]) for each in MEANINGS if verdicts.get(str(each), 0)))
    if wreck.gap_count:
        out.line()
        out.line(f"{count(wreck.gap_count, 'range')}, {size(wreck.gap_bytes)}, belonged to no whole record:")
        shown = out.first(wreck.gaps, SHOWN)
        table = [Column("file", flexible=True), Column("offset", right=True), Column("bytes", right=True)]
        out.table(table, ((gap.piece, f"{gap.offset:,}", f"{gap.length:,}") for gap in shown))
        out.more_rows(wreck.gap_count - len(shown))
    if as_store:
        out.line()
        out.next_step("check it, then start a broker on it.", command("mqstore", "verify", document["to"]))
