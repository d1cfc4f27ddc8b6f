"""The layouts are written down twice, for Python and for C: both must have the same names and values."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import mqstore.kernels.rocketmq as rocketmq

SOURCES = Path(rocketmq.__file__).parent


def c_constants(source: str) -> dict[str, int]:
    """Return the constants of a .pxd: the members of its anonymous enums, and the names that stand for a #define."""
    found: dict[str, int] = {}
    for block in re.findall(r"^c(?:p)?def enum:\n((?:[ ]{4}.*\n|\n)+)", source, re.MULTILINE):
        following = 0
        for line in block.splitlines():
            text = line.partition("#")[0].strip()
            if text:
                name, _, expression = (part.strip() for part in text.partition("="))
                value = eval(expression, {}, found) if expression else following
                found[name], following = value, value + 1
    macros = dict(re.findall(r"#define (MQ_\w+) (-?\d+)U?LL", source))
    for name, macro in re.findall(r'const (?:unsigned )?long long (\w+) "(MQ_\w+)"', source):
        found[name] = int(macros[macro])
    return found


def python_constants(source: str, module: object) -> dict[str, int]:
    """Return the constants that a module assigns, not those it imports."""
    names = {
        target.id
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    return {name: getattr(module, name) for name in names}


@pytest.mark.parametrize("name", ["record_layout", "entry_layout"])
def test_the_constants_for_c_are_those_for_python(name: str) -> None:
    module = import_module(f"mqstore.kernels.rocketmq.{name}")
    for_c = c_constants((SOURCES / f"{name}.pxd").read_text(encoding="utf-8"))
    for_python = python_constants((SOURCES / f"{name}.py").read_text(encoding="utf-8"), module)
    assert len(for_python) > 15
    assert for_c == for_python


@pytest.mark.parametrize("name", ["frames", "encode", "pull_batch", "dispatch"])
def test_the_constants_of_a_kernel_are_those_of_its_uncompiled_form(name: str) -> None:
    """Uncompiled, a kernel assigns its constants in `if not cython.compiled`."""
    for_c = c_constants_with_layouts(name)
    source = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
    block = next(each for each in ast.parse(source).body if isinstance(each, ast.If))
    known = dict(for_c)
    for_python = {}
    for statement in block.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name) and statement.targets[0].id.isupper():
            constant = statement.targets[0].id
            known[constant] = for_python[constant] = eval(ast.unparse(statement.value), {}, known)
    assert for_python
    assert {constant: for_c[constant] for constant in for_python} == for_python


def c_constants_with_layouts(name: str) -> dict[str, int]:
    """Return the constants of a kernel's .pxd, which may use those of the layouts and of `frames`."""
    names = ["record_layout", "entry_layout", *(["frames"] if name != "frames" else []), name]
    return c_constants("\n".join((SOURCES / f"{each}.pxd").read_text(encoding="utf-8") for each in names))
