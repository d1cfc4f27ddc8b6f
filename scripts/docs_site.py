"""The documentation as a site: its Markdown pages, with references made from the commands and from the public docstrings.

    python scripts/docs_site.py OUT              writes OUT/html; a link or anchor that leads nowhere is an error
    python scripts/docs_site.py --manual FILE    writes only the manual page, which `scripts/wheels` puts into the packages

Run by `scripts/docs`. Nothing is fetched: the pages need no other host either.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from mqstore.cli.common.arguments import prepared
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
FACTS = ("message-table", "findings", "versions", "limits")
GUIDE = Path("docs/guide/commands.md")  # a page of the site for each of its commands
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```+)([\w-]+)[^\n]*$", re.MULTILINE)


def main(out: Path) -> int:
    pages = out / "pages"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    places = {Path("docs") / page.relative_to(pages): page.relative_to(pages) for page in pages.rglob("*.md")}
    places |= {Path(name): Path(place) for name, place in TOP.items()}
    shown = commands()
    at_work = by_command((ROOT / GUIDE).read_text(encoding="utf-8"), shown)
    places |= {Path(f"{GUIDE}#{name}"): Path("commands", f"{name}.md") for name in shown}
    (pages / "commands").mkdir()
    (pages / "reference").mkdir()
    broken = []
    for source, place in places.items():
        name = place.stem if "#" in source.name else ""
        if name:
            text = f"# `{name}`\n\n{at_work[name]}\n{shown[name]}"
        elif source == GUIDE:
            text = f"{at_work['']}\n{overview()}"
        else:
            text = (ROOT / source).read_text(encoding="utf-8")
        text, lost = linked(text, GUIDE if name else source, places, place)
        (pages / place).write_text(_FENCE.sub(r"\1\2", text), encoding="utf-8")
        broken += [f"{source}: {target}" for target in lost]
    if broken:
        sys.stderr.write("".join(f"{each}: this link leads nowhere\n" for each in broken))
        return 1
    for package in PACKAGES:
        (pages / "reference" / f"{package}.md").write_text(api(package), encoding="utf-8")
    (out / "mkdocs.yml").write_text(yaml.safe_dump(settings(pages), sort_keys=False, allow_unicode=True), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(out / "mkdocs.yml"), "-d", str(out / "html")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
        return done.returncode
    found = out / "html" / "search" / "search_index.json"
    index = search_index(json.loads(found.read_text(encoding="utf-8"))["docs"])
    found.with_name("index.js").write_text(f"window.searchIndex = {json.dumps(index)};\n", encoding="utf-8")
    found.unlink()
    return 0


def search_index(sections: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return the sections of the site as its search wants them: each with its page's title, and with a rank. Tasks come first."""
    tasks = {f"guide/{name}.html" for name in TASKS}
    found: list[dict[str, Any]] = []
    title = ""
    for each in sections:
        place = each["location"].partition("#")[0]
        rank = 4 if place in tasks else 1.5 if place.startswith(("commands/", "guide/", "index.")) else 1
        if place == each["location"]:
            title = each["title"]  # of the page, with the text of all its sections; the first of them is its beginning
        else:
            begins = not found or found[-1]["place"] != place
            found.append(each | {"location": place if begins else each["location"], "place": place, "page": title, "rank": rank})
    return found


def by_command(text: str, names: Collection[str]) -> dict[str, str]:
    """Return what a page has on each name, by its headings of the second level, and under "" what is left of it."""
    parts = re.split(r"^(## .*)\n", text, flags=re.MULTILINE)
    found = {"": parts[0]}
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        shown = [name for name in re.findall(r"`(\w+)`", heading) if name in names]
        found |= dict.fromkeys(shown, body.strip() + "\n")
        if not shown:
            found[""] += f"{heading}\n{body}"
    return found


def linked(text: str, source: Path, places: dict[Path, Path], place: Path) -> tuple[str, list[str]]:
    """Return a page with its links as they are at a place in the site, and those that lead nowhere.

    A link to a source file becomes its name.
    """
    lost: list[str] = []

    def one(link: re.Match[str]) -> str:
        image, label, target, anchor = link[1], link[2], link[3], link[4] or ""
        if re.match(r"[a-z]+:", target):
            return link[0]
        found = Path(os.path.normpath(source.parent / target)) if target else source
        if (ROOT / found / "README.md").is_file():
            found = found / "README.md"
        if (own := Path(f"{found}{anchor}")) in places:
            found, anchor = own, anchor if own == found else ""
        elif not target:
            return link[0]
        if found in places:
            return f"{image}[{label}]({os.path.relpath(places[found], place.parent)}{anchor})"
        if not (ROOT / found).exists():
            lost.append(target)
        elif found.parts[0] == "docs":
            return f"{image}[{label}]({os.path.relpath(found.relative_to('docs'), place.parent)}{anchor})"
        return label if label.startswith("`") else f"{label} (`{found}`)"

    return _LINK.sub(one, text), lost


def commands() -> dict[str, str]:
    """Return the options and exit statuses of each command, from the commands themselves."""
    pages = {}
    for name, command in _shown():
        own = [row for each in command.params if each not in common_options(command) for row in _parameter(each)]
        table = ["| | |", "|---|---|", *(f"| {spelling} | {text} |" for spelling, text in own)]
        end = "\n\n".join(part if part.startswith("Exit") else f"`{part}`" for part in (command.epilog or "").split("\n\n"))
        pages[name] = "\n".join(["## Options", "", *table, "", end, "", "[All commands](commands.md)", ""])
    return pages


def overview() -> str:
    """Return the list of the commands, and the options that all have."""
    listed = [f"| [`{name}`](#{name}) | {' '.join((command.help or '').split('.')[0].split())} |" for name, command in _shown()]
    verify = dict(_shown())["verify"]
    shared = [f"| {spelling} | {text} |" for each in common_options(verify) for spelling, text in _parameter(each)]
    head = ["", "| | |", "|---|---|"]
    return "\n".join(["## Every command", *head, *listed, "", "## Options of every command", *head, *shared]) + "\n"


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
        for spelling, text in _parameter(each):
            lines += [".TP", f".B {plain(spelling.replace('`', ''))}", plain(text)]
    lines += [".SH COMMANDS"]
    for name, command in _shown():
        lines += [f".SS {name}", *(part and f"{plain(part)}\n.PP" for part in (command.help or "").split("\n\n"))]
        for each in command.params:
            if each not in common_options(command):
                for spelling, text in _parameter(each):
                    lines += [".TP", f".B {plain(spelling.replace('`', ''))}", plain(text)]
        lines += [".PP", *(f"{plain(part)}\n.PP" for part in (command.epilog or "").split("\n\n"))]
    return "\n".join(lines) + "\n"


def _shown() -> Iterator[tuple[str, Any]]:
    """Yield the commands that the help lists."""
    group: Any = parser()
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if not command.hidden:
            prepared(command.params)
            yield name, command


def _parameter(parameter: Any) -> Iterator[tuple[str, str]]:
    if getattr(parameter, "hidden", False):
        return
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    if parameter.param_type_name == "argument":
        yield f"`{parameter.metavar or parameter.name.upper()}`", text
        return
    value = "" if parameter.is_flag else f" {parameter.metavar}"
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

    left = {page.stem for page in (pages / "guide").glob("*.md")} - {*TASKS, *FACTS, GUIDE.stem}
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
        "theme": {
            "name": "mkdocs",
            "custom_dir": str(ROOT / "scripts" / "site"),
            "highlightjs": False,
            "color_mode": "auto",
            "user_color_mode_toggle": True,
            "search_index_only": True,
        },
        "extra_css": ["site.css"],
        "extra_javascript": [{"path": "site.js", "defer": True}],
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
            {"Commands": [{"All commands": "guide/commands.md"}, *(title(f"commands/{name}.md") for name in commands())]},
            {"Reference": [*(title(f"guide/{name}.md") for name in FACTS), *({name: f"reference/{name}.md"} for name in PACKAGES)]},
            {"Formats": listed["formats"]},
            {
                "Project": [
                    *project,
                    *listed["internals"],
                    {"Changelog": "changelog.md"},
                    {"Security": "security.md"},
                    {"Decisions": listed["decisions"]},
                ]
            },
        ],
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--manual"] and len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(manual(), encoding="utf-8")
        sys.exit()
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
