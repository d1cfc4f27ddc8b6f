"""A body for a person, as text or as a hex dump; and a body written to a file."""

from __future__ import annotations

from pathlib import Path

from mqstore.cli.common.arguments import BodyDisplay
from mqstore.cli.common.output import Output
from mqstore.table.formatting import count

PREVIEW = 400


def write_body(content: bytes, target: Path) -> None:
    """Write a body to a new file."""
    from mqstore.files.durable import NewFile

    with NewFile(target) as new:
        new.file.write(content)
        new.publish()


def print_body(out: Output, content: bytes, shown: BodyDisplay) -> None:
    """Print a body, cut short unless `-v` is given; print nothing if `shown` leaves bodies out."""
    if shown is BodyDisplay.NONE or shown is BodyDisplay.SHA256:
        return
    part = content if out.settings.verbose else content[:PREVIEW]
    try:
        text = part.decode("utf-8")
        plain = all(letter.isprintable() or letter in "\n\t\r" for letter in text)
    except UnicodeDecodeError:
        # a character cut off at the end does not make it binary
        text = part[:-3].decode("utf-8", "replace")
        plain = "\ufffd" not in text and all(letter.isprintable() or letter in "\n\t\r" for letter in text)
    out.line()
    if plain or shown is BodyDisplay.TEXT:
        out.line(text.replace("\r\n", "\n").replace("\t", "    "))
    else:
        for start in range(0, min(len(part), PREVIEW), 16):
            line = part[start : start + 16]
            letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
            out.line(f"{start:08x}  {line.hex(' '):<47}  {letters}")
    if len(part) < len(content):
        out.line(f"… {count(len(content) - len(part), 'byte')} more; -v shows all, --raw FILE writes the body to a file", style="dim")
