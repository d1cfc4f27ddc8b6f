"""Mutants of a source text: small changes, each of which a test should notice."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

KINDS = ("comparison", "constant", "condition", "return", "arguments")
_FLIPPED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """One change; `function` is the qualified name as code objects have it, empty at the level of a module or class."""

    kind: str
    function: str
    line: int
    start: int  # in the UTF-8 bytes of the source
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def shown(self, source: bytes) -> str:
        """What is changed, without its place: it stays the same when lines are added elsewhere."""
        before = " ".join(source[self.start : self.end].decode().split())
        if self.kind == "return":
            before = " ".join(source[self.start :].split(b"\n", 1)[0].decode().split())
        after = "return" if self.kind == "return" else " ".join(self.text.split())
        return f"{before} -> {after}"

    def named(self, place: Path, source: bytes) -> str:
        """place: from src/mqstore on."""
        return f"{place.as_posix()} | {self.function} | {self.shown(source)}"


class _Edits(ast.NodeVisitor):
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []
        self.function = ""
        self.edits: list[Edit] = []

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()

    def _add(self, kind: str, node: ast.expr, text: str) -> None:
        self.edits.append(Edit(kind, self.function, node.lineno, *self._span(node), text))

    def _scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        outer = self.names, self.function
        named = [*self.names, node.name]
        if isinstance(node, ast.ClassDef):
            self.names, self.function = named, ""
        else:
            self.names, self.function = [*named, "<locals>"], ".".join(named)
        for n, statement in enumerate(node.body):
            if n and not isinstance(node, ast.ClassDef) and not isinstance(statement, ast.Return | ast.Raise | ast.FunctionDef):
                start = self._span(statement)[0]
                indent = " " * statement.col_offset
                if self.source[self.starts[statement.lineno - 1] : start].isspace():
                    self.edits.append(Edit("return", self.function, statement.lineno, start, start, f"return None\n{indent}"))
            self.visit(statement)
        self.names, self.function = outer

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _scope

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """The places of what is in it are not exact before Python 3.12."""

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            flipped = _FLIPPED[type(node.ops[0])]
            self._add("comparison", node, f"({self._text(node.left)}) {flipped} ({self._text(node.comparators[0])})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            for change in (1, -1):
                self._add("constant", node, f"({node.value + change})")

    def _condition(self, node: ast.If | ast.IfExp | ast.While) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._add("condition", node.test, f"(not ({self._text(node.test)}))")
        if not isinstance(node, ast.While):
            self._add("condition", node.test, "True")
            self._add("condition", node.test, "False")
        self.generic_visit(node)

    visit_If = visit_IfExp = visit_While = _condition

    def visit_Call(self, node: ast.Call) -> None:
        first = node.args[:2]
        if len(first) == 2 and not any(isinstance(each, ast.Starred | ast.GeneratorExp) for each in first):
            (start, end), (next_start, next_end) = map(self._span, first)
            between = self.source[end:next_start].decode()
            either = isinstance(node.func, ast.Name) and node.func.id in ("max", "min")
            if not either and self._text(first[0]) != self._text(first[1]):
                text = f"{self._text(first[1])}{between}{self._text(first[0])}"
                self.edits.append(Edit("arguments", self.function, node.lineno, start, next_end, text))
        self.generic_visit(node)


def edits(source: bytes) -> list[Edit]:
    """All changes of a source that still compile."""
    visitor = _Edits(source)
    visitor.visit(ast.parse(source))
    return visitor.edits


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statements of each function, branch, loop and handler: what is entered at its first one, or not at all."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if block and isinstance(block, list):
                    yield block


def block_of(source: bytes, line: int) -> int:
    """The first line of the innermost block with a line; 0 at the level of a module or class."""
    inside = [block[0].lineno for block in blocks(ast.parse(source)) if block[0].lineno <= line <= (block[-1].end_lineno or 0)]
    return max(inside, default=0)


def drawn(sources: Path, below: str, seeds: range) -> Iterator[tuple[int, Path, Edit]]:
    """One mutant for each seed: a file drawn by its lines, then a kind of change, then one of these. Kernels are drawn by themselves."""
    top = sources / below
    files = [top] if top.is_file() else sorted(top.rglob("*.py"))
    kernels = sources / "kernels"
    files = [file for file in files if top.is_relative_to(kernels) or not file.is_relative_to(kernels)]
    weights = [path.read_bytes().count(b"\n") for path in files]
    known: dict[Path, list[Edit]] = {}
    for seed in seeds:
        random = Random(f"mutant {seed}")
        while True:
            path = random.choices(files, weights)[0]
            if path not in known:
                known[path] = edits(path.read_bytes())
            of_kinds = [[edit for edit in known[path] if edit.kind == kind] for kind in KINDS]
            if any(of_kinds):
                yield seed, path, random.choice(random.choice([each for each in of_kinds if each]))
                break


def lasting(sources: Path, below: str, number: int) -> Iterator[tuple[Path, Edit]]:
    """As many changes of each kind: those whose names have the lowest digests, most of which stay the same when the source changes."""
    top = sources / below
    found: dict[str, dict[str, tuple[Path, Edit]]] = {kind: {} for kind in KINDS}
    for path in [top] if top.is_file() else sorted(top.rglob("*.py")):
        source = path.read_bytes()
        for edit in edits(source):
            name = edit.named(path.relative_to(sources), source)
            found[edit.kind].setdefault(hashlib.sha256(name.encode()).hexdigest(), (path, edit))
    for of_kind in found.values():
        yield from (of_kind[digest] for digest in sorted(of_kind)[:number])
