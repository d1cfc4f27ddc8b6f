"""The documentation as a site: its Markdown pages, with references made from the commands and from the public docstrings.

    python scripts/docs_site.py OUT              writes OUT/html; a link or anchor that leads nowhere is an error
    python scripts/docs_site.py --manual FILE    writes only the manual page, which `scripts/wheels` puts into the packages

Run by `scripts/docs`. Nothing is fetched: the pages need no other host either.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml

from mqstore.cli.common.command import common_options
from mqstore.cli.main import parser
from mqstore.version import __version__

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"

# pages at the top of the repository, and where they are in the site
TOP = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
PACKAGES = (
    "mqstore",
    "mqstore.rocketmq",
    "mqstore.rabbitmq",
    "mqstore.pipeline",
    "mqstore.table",
    "mqstore.testing",
    "mqstore.broker",
    "mqstore.console",
)
# what people come to do, in the order in which they ask
TASKS = (
    "install",
    "start",
    "salvage",
    "rabbitmq",
    "node",
    "quorum",
    "find",
    "replay",
    "explain",
    "analysis",
    "spark",
    "cluster",
    "connect",
    "console",
    "pytest",
    "broker",
    "who-may-connect",
    "embed",
    "embed-queues",
)
FACTS = ("commands", "message-table", "findings", "versions", "limits")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```+)([\w-]+)[^\n]*$", re.MULTILINE)


def main(out: Path) -> int:
    pages = out / "pages"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    places = {Path("docs") / page.relative_to(pages): page.relative_to(pages) for page in pages.rglob("*.md")}
    places |= {Path(name): Path(place) for name, place in TOP.items()}
    broken = []
    for source, place in places.items():
        text, lost = linked((ROOT / source).read_text(encoding="utf-8"), source, places)
        (pages / place).write_text(_FENCE.sub(r"\1\2", text), encoding="utf-8")
        broken += [f"{source}: {target}" for target in lost]
    if broken:
        sys.stderr.write("".join(f"{each}: this link leads nowhere\n" for each in broken))
        return 1
    (pages / "reference").mkdir()
    (pages / "reference" / "commands").mkdir()
    for name, text in commands().items():
        place = "commands.md" if name == "index" else f"commands/{name}.md"
        (pages / "reference" / place).write_text(text, encoding="utf-8")
    for package in PACKAGES:
        (pages / "reference" / f"{package}.md").write_text(api(package), encoding="utf-8")
    (out / "mkdocs.yml").write_text(yaml.safe_dump(settings(pages), sort_keys=False, allow_unicode=True), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(out / "mkdocs.yml"), "-d", str(out / "html")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
    return done.returncode


def linked(text: str, source: Path, places: dict[Path, Path]) -> tuple[str, list[str]]:
    """Return a page with its links as they are in the site, and those that lead nowhere. A link to a source file becomes its name."""
    lost: list[str] = []

    def one(link: re.Match[str]) -> str:
        image, label, target, anchor = link[1], link[2], link[3], link[4] or ""
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        found = Path(os.path.normpath(source.parent / target))
        if (ROOT / found / "README.md").is_file():
            found = found / "README.md"
        if found in places:
            there = os.path.relpath(places[found], places[source].parent)
            return f"{image}[{label}]({there}{anchor})"
        if not (ROOT / found).exists():
            lost.append(target)
        elif found.parts[0] == "docs":
            return f"{image}[{label}]({os.path.relpath(found.relative_to('docs'), places[source].parent)}{anchor})"
        return label if label.startswith("`") else f"{label} (`{found}`)"

    return _LINK.sub(one, text), lost


def commands() -> dict[str, str]:
    """Return a page for each command, and `index`, the list of them; from the commands themselves."""
    listed = ["# Commands and options", "", "[Commands](../guide/commands.md) shows each at work.", "", "| command | |", "|---|---|"]
    pages = {}
    for name, command in _shown():
        own = [row for each in command.params if each not in common_options(command) for row in _parameter(command, each)]
        table = ["| | |", "|---|---|", *(f"| {spelling} | {text} |" for spelling, text in own)]
        end = "\n\n".join(part if part.startswith("Exit") else f"`{part}`" for part in (command.epilog or "").split("\n\n"))
        pages[name] = "\n".join(
            [f"# `{name}`", "", *_help(command.help), *table, "", end, "", "At work: [commands](../../guide/commands.md)", ""]
        )
        listed.append(f"| [`{name}`](commands/{name}.md) | {' '.join((command.help or '').split('.')[0].split())} |")
    verify = dict(_shown())["verify"]
    shared = [f"| {spelling} | {text} |" for each in common_options(verify) for spelling, text in _parameter(verify, each)]
    listed += ["", "## Options of every command", "", "| | |", "|---|---|", *shared]
    return {"index": "\n".join(listed) + "\n", **pages}


def manual() -> str:
    """Return the manual page, section 1, from the commands themselves."""

    def plain(text: str) -> str:
        text = " ".join(text.split()).replace("\\|", "|").replace("\\", "\\e").replace("-", "\\-")
        return f"\\&{text}" if text.startswith((".", "'")) else text

    lines = [
        f'.TH MQSTORE 1 "" "mqstore {__version__}"',
        ".SH NAME",
        "mqstore \\- read, prove and repair the files of RocketMQ and RabbitMQ",
    ]
    lines += [".SH SYNOPSIS", ".B mqstore", "[OPTIONS] COMMAND [ARGUMENTS]"]
    verify = dict(_shown())["verify"]
    lines += [".SH OPTIONS OF EVERY COMMAND"]
    for each in common_options(verify):
        for spelling, text in _parameter(verify, each):
            lines += [".TP", f".B {plain(spelling.replace('`', ''))}", plain(text)]
    lines += [".SH COMMANDS"]
    for name, command in _shown():
        lines += [f".SS {name}", *(part and f"{plain(part)}\n.PP" for part in (command.help or "").split("\n\n"))]
        for each in command.params:
            if each not in common_options(command):
                for spelling, text in _parameter(command, each):
                    lines += [".TP", f".B {plain(spelling.replace('`', ''))}", plain(text)]
        lines += [".PP", *(f"{plain(part)}\n.PP" for part in (command.epilog or "").split("\n\n"))]
    return "\n".join(lines) + "\n"


def _shown() -> Iterator[tuple[str, Any]]:
    """Yield the commands that the help lists."""
    group: Any = parser()
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if not command.hidden:
            yield name, command


def _help(text: str | None) -> Iterator[str]:
    for paragraph in (text or "").split("\n\n"):
        yield " ".join(paragraph.split())
        yield ""


def _parameter(command: Any, parameter: Any) -> Iterator[tuple[str, str]]:
    if getattr(parameter, "hidden", False):
        return
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    if parameter.param_type_name == "argument":
        yield f"`{parameter.metavar or parameter.name.upper()}`", text
        return
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.display_type(typer.Context(command)).strip('<>')}"
    yield ", ".join(f"`{each}{value}`" for each in parameter.opts).replace("|", "\\|"), text


def api(package: str) -> str:
    """Return the page of a package's public names, each with what its docstring says."""
    module = importlib.import_module(package)
    parts = [f"# {package}", "", *_module_text(module.__doc__ or ""), ""]
    for name in sorted(module.__all__, key=lambda name: (name.startswith("_"), name)):
        found = getattr(module, name)
        if isinstance(found, type) or callable(found):
            parts += [f"::: {found.__module__}.{found.__qualname__}", ""]
        elif not name.startswith("_"):
            parts += [f"## {name}", "", "```python", f"{name} = {found!r}", "```", ""]
    return "\n".join(parts) + "\n"


def _module_text(text: str) -> Iterator[str]:
    """Yield a docstring with its indented and prompted blocks as code."""
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith((">>> ", "    ")) or block.lstrip().startswith(">>> "):
            yield from ("```python", *(line.removeprefix("    ") for line in block.splitlines()), "```", "")
        else:
            yield from (block, "")


def settings(pages: Path) -> dict[str, Any]:
    """Return the settings of the generator. The tasks come first."""

    def title(page: str) -> dict[str, str]:
        first = (pages / page).read_text(encoding="utf-8").partition("\n")[0]
        return {first.removeprefix("# ").replace("`", ""): page}

    left = {page.stem for page in (pages / "guide").glob("*.md")} - {*TASKS, *FACTS}
    if left:
        raise SystemExit(f"scripts/docs_site.py: give these pages of the guide a place: {', '.join(sorted(left))}")
    rooms = ("formats", "internals", "decisions")
    listed = {name: [title(f"{name}/{page.name}") for page in sorted((pages / name).glob("*.md"))] for name in rooms}
    names = ("architecture", "modules", "performance", "reliability", "contributing", "releasing")
    project = [title(f"{name}.md") for name in names]
    return {
        "site_name": "mqstore",
        "docs_dir": str(pages),
        "use_directory_urls": False,
        "theme": {"name": "mkdocs", "highlightjs": False, "navigation_depth": 2, "color_mode": "auto", "user_color_mode_toggle": True},
        "plugins": [
            "search",
            {
                "mkdocstrings": {
                    "handlers": {
                        "python": {
                            "paths": [str(SOURCES)],
                            "options": {
                                "docstring_style": None,
                                "show_source": False,
                                "show_root_heading": True,
                                "show_root_full_path": False,
                                "show_bases": False,
                                "merge_init_into_class": True,
                                "heading_level": 2,
                                "members_order": "source",
                                "filters": ["!^_"],
                                "show_if_no_docstring": False,
                                "separate_signature": True,
                                "line_length": 100,
                            },
                        }
                    }
                }
            },
        ],
        "markdown_extensions": [
            "tables",
            "fenced_code",
            {"codehilite": {"guess_lang": False}},
            {"toc": {"permalink": "#", "toc_depth": 3}},
        ],
        "validation": {"nav": {"omitted_files": "info"}, "links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"}},
        "nav": [
            {"mqstore": "index.md"},
            {"Tasks": [title(f"guide/{name}.md") for name in TASKS]},
            {
                "Reference": [
                    *(title(f"guide/{name}.md") for name in FACTS),
                    {"Commands and options": "reference/commands.md"},
                    *({package: f"reference/{package}.md"} for package in PACKAGES),
                ]
            },
            {"Formats": listed["formats"]},
            {"Project": [*project, *listed["internals"], {"Changelog": "changelog.md"}, {"Security": "security.md"}]},
            {"Decisions": listed["decisions"]},
        ],
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--manual"] and len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(manual(), encoding="utf-8")
        sys.exit()
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
