"""Command output in the documentation: fenced `console` blocks, run for real and compared or rewritten.

    ```console
    $ mqstore topics store
    …
    ```

Blocks of a page run in order in one directory that holds golden stores under plain names: `store` (a 4.9.3 broker that was
killed), `damaged`, `refused` and `halted` (bytes of a store changed afterwards), `dead` (a copy of `refused`), `old-node` (a node of
RabbitMQ 3.10.8), `quorum-node`, `quorum-long` and `quorum-flipped` (nodes with quorum queues).
`console head=8` keeps the first eight lines of each output. Sizes, times and rates differ between machines, so only their
shape is compared. Blocks that need Spark are `console spark`. A command may end with `> file`.

    python tests/support/transcripts.py        rewrites the output of all blocks
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":  # as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from support import golden as goldenkit
from support import quorum, rabbitmq_states
from support.rabbitmq_nodes import unpacked

from mqstore.rabbitmq.quorum.wal import read_wal

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = (
    ROOT / "README.md",
    GUIDE / "commands.md",
    GUIDE / "find.md",
    GUIDE / "findings.md",
    GUIDE / "node.md",
    GUIDE / "quorum.md",
    GUIDE / "rabbitmq.md",
    GUIDE / "replay.md",
    GUIDE / "salvage.md",
    GUIDE / "start.md",
    GUIDE / "who-may-connect.md",
)
STORES = {
    "store": "4.9.3/b-kill9",
    "damaged": "4.9.3/m-damaged/01-body-flip",
    "broker": "4.9.3/f-broker-offsets",
    "refused": "4.9.3/m-damaged/07-truncate-last",
    "node": "3.10.8/f-mixed-features",
    "wreck": "3.10.8/e2-gc-interrupted",
}
WRITABLE = {"dead": "4.9.3/m-damaged/07-truncate-last"}  # a copy, which the commands of a page may change
OLD_NODE = "3.10.8-killed"
QUORUM = {"quorum-node": "3.10.8/a-quorum-mix-kill9", "quorum-long": "3.10.8/b-quorum-long-kill9"}
FLIPPED = "4.3.6/a-quorum-mix-kill9"  # with one bit changed in the middle of the write-ahead log
MADE = {"halted": "journal_repeats"}  # a state of support.rabbitmq_states
MORE = "…"
WIDTHS = {"README.md": 80}  # columns; the others have 100
PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}

_BLOCK = re.compile(r"^```console(?P<words>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MEASURED = re.compile(r"\d[\d,.]* (?:ms|min|s|[KMG]?i?B/s|[KMGT]iB|[KMGT]?B|bytes|threads?)(?!\w)")


@contextlib.contextmanager
def stores() -> Iterator[Path]:
    """Yield a directory with the golden stores under their plain names."""
    with TemporaryDirectory() as place:
        for name, case in STORES.items():
            found = goldenkit.case_named(case)
            (Path(place) / name).symlink_to(goldenkit.opened(found))
        for name, case in WRITABLE.items():
            goldenkit.unpack(goldenkit.case_named(case), Path(place) / name)
        unpacked(OLD_NODE, Path(place) / "old-node")
        for name, state in MADE.items():
            rabbitmq_states.made(state, Path(place) / name)
        for name, case in QUORUM.items():
            (Path(place) / name).symlink_to(quorum.node(case))
        _flipped(Path(place))
        yield Path(place)


def _flipped(place: Path) -> None:
    """Make `quorum-flipped`: a node's directory with a changed bit in its write-ahead log."""
    quorum.unpack(FLIPPED, place / "unpacked").rename(place / "quorum-flipped")
    (path,) = (place / "quorum-flipped" / "quorum").glob("*/*.wal")
    data = bytearray(path.read_bytes())
    records = read_wal(np.frombuffer(data, np.uint8), path.name)
    mine = records.records[[records.uids[number].startswith(b"2F_RET") for number in records.records["uid"].tolist()]]
    data[int(mine["position"][len(mine) * 2 // 3]) + 20] ^= 1
    path.write_bytes(bytes(data))


def run(command: str, place: Path, width: int = 100) -> str:
    """Run a command line and return what it prints, both streams together. `mqstore` runs in this process. width: of the terminal."""
    words = shlex.split(command)
    into = place / words[-1] if words[-2:-1] == [">"] else None
    words = words[:-2] if into is not None else words
    if words[0] == "mqstore":
        printed, errors = _mqstore(words[1:], place, width, apart=into is not None)
    else:
        done = subprocess.run(
            words, cwd=place, env=os.environ | PLAIN, text=True, check=False, timeout=300, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        printed, errors = done.stdout, ""
    if into is not None:
        into.write_text(printed, encoding="utf-8")
        printed = errors
    return "\n".join(line.rstrip() for line in printed.replace(f"{place}/", "").strip("\n").splitlines())


def _mqstore(arguments: list[str], place: Path, width: int, *, apart: bool) -> tuple[str, str]:
    """Run the command in a directory. Returns standard output, and standard error if it is wanted apart from it."""
    from mqstore.cli.main import run as run_command

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) if apart else out
    kept = {name: os.environ.get(name) for name in PLAIN}
    os.environ.update(PLAIN | {"COLUMNS": str(width)})
    try:
        with contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run_command(arguments)
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    texts = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err) if isinstance(stream.buffer, io.BytesIO)]
    return texts[0], texts[1] if apart else ""


def blocks(page: Path, *, spark: bool | None = None) -> list[tuple[str, int | None]]:
    """Return the blocks of a page, each with the number of lines to keep of each output. spark: only those that need Spark, or do not."""
    found = []
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        words = block["words"].split()
        if spark in (None, "spark" in words):
            found.append((block["text"], _head(words)))
    return found


def _head(words: list[str]) -> int | None:
    return next((int(word.removeprefix("head=")) for word in words if word.startswith("head=")), None)


def commands(text: str) -> list[str]:
    """Return the command lines of a block."""
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


def transcript(text: str, head: int | None, place: Path, page: Path) -> str:
    """Return a block with the output that its commands print now."""
    told = []
    for command in commands(text):
        lines = run(command, place, WIDTHS.get(page.name, 100)).splitlines()
        if head is not None and len(lines) > head:
            lines = [*lines[:head], MORE]
        told.append("\n".join([f"$ {command}", *lines, ""]))
    return "\n".join(told)


def shape(text: str) -> str:
    """Return the text without what depends on the machine: measurements, and the widths and line breaks that follow from them."""
    return " ".join(re.sub(r"─+", "─", _MEASURED.sub("N", " ".join(text.split()))).split())


def write(page: Path, place: Path) -> None:
    """Rewrite the output of all blocks of a page, except those that differ only in measurements."""

    def rewritten(block: re.Match[str]) -> str:
        words = block["words"]
        output = transcript(block["text"], _head(words.split()), place, page)
        if "Traceback" in output or "a bug in mqstore" in output:
            raise SystemExit(f"{page.name} is left unchanged: {output}")
        if shape(output) == shape(block["text"]):
            return block[0]
        return f"```console{words}\n{output}```"

    page.write_text(_BLOCK.sub(rewritten, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for each in PAGES:
        with stores() as directory:
            write(each, directory)
