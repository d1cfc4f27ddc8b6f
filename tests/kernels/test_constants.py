"""The constants of kernels are written down twice, for Python and for C: both must have the same names and values."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import mqstore.kernels
from mqstore.kernels.rabbitmq import message_terms, term_layout

ROOT = Path(mqstore.kernels.__file__).parent
SOURCES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
LAYOUTS = [name for name in SOURCES if name.endswith("_layout")]


def assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Return the constants assigned there and their expressions, not those that are imported."""
    return {
        target.id: statement.value
        for statement in body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    }


def uncompiled_constants(name: str) -> dict[str, ast.expr]:
    """Return what a kernel assigns in `if not cython.compiled`."""
    blocks = [each for each in ast.parse(SOURCES[name]).body if isinstance(each, ast.If)]
    return assigned([statement for block in blocks if ast.unparse(block.test) == "not cython.compiled" for statement in block.body])


WITH_CONSTANTS = [name for name in SOURCES if not name.startswith("common.") and uncompiled_constants(name)]


@cache
def c_constants(name: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the constants of a .pxd: the members of its enums and the names that stand for a #define; and those it takes from others."""
    path = ROOT.joinpath(*name.split(".")).with_suffix(".pxd")
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    taken: dict[str, int] = {}
    for other, one, several in re.findall(r"^from mqstore\.kernels\.(\S+) cimport (?:\(\n([^)]*)\)|(.*))", source, re.MULTILINE):
        theirs = c_constants(other)[0]
        taken |= {each: theirs[each] for each in re.findall(r"\w+", one + several) if each in theirs}
    found: dict[str, int] = {}
    for block in re.findall(r"^c(?:p)?def enum:\n((?:[ ]{4}.*\n|\n)+)", source, re.MULTILINE):
        following = 0
        for line in block.splitlines():
            text = line.partition("#")[0].strip()
            if text:
                member, _, expression = (part.strip() for part in text.partition("="))
                value = eval(expression, {}, taken | found) if expression else following
                found[member], following = value, value + 1
    macros = dict(re.findall(r"#define (MQ_\w+) (-?\d+)U?LL", source))
    for member, macro in re.findall(r'const (?:unsigned )?long long (\w+) "(MQ_\w+)"', source):
        found[member] = int(macros[macro])
    return found, taken


def test_every_family_has_layouts_and_constants() -> None:
    assert {name.partition(".")[0] for name in LAYOUTS} == {"rocketmq", "rabbitmq"}
    for name in ("rocketmq.frames", "rocketmq.batch_body", "rabbitmq.terms", "rabbitmq.message_terms", "rabbitmq.id_table"):
        assert name in WITH_CONSTANTS


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_constants_for_c_are_those_for_python(name: str) -> None:
    module = import_module(f"mqstore.kernels.{name}")
    for_python = {constant: getattr(module, constant) for constant in assigned(ast.parse(SOURCES[name]).body)}
    assert len(for_python) > 12
    assert c_constants(name)[0] == for_python


@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_the_constants_of_a_kernel_are_those_of_its_uncompiled_form(name: str) -> None:
    """Uncompiled, a kernel assigns its constants in `if not cython.compiled`."""
    own, taken = c_constants(name)
    known: dict[str, object] = dict(own | taken)
    for_python = {}
    for constant, expression in uncompiled_constants(name).items():
        known[constant] = for_python[constant] = eval(ast.unparse(expression), {}, known)
    assert for_python
    assert {constant: own.get(constant) for constant in for_python} == for_python


def test_the_names_in_message_terms_are_where_the_layout_says() -> None:
    names = message_terms.NAMES.tobytes()
    at = 0
    for name in ("basic_message", "resource", "exchange", "content", "none", "rabbit_framing_amqp_0_9_1", "true", "false"):
        constant = "FRAMING" if "framing" in name else name.upper()
        assert (getattr(term_layout, constant), getattr(term_layout, f"{constant}_SIZE")) == (at, len(name))
        assert names[at : at + len(name)] == name.encode()
        at += len(name)
    assert at == len(names)


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("rabbitmq.") and name not in LAYOUTS])
def test_the_code_of_a_rabbitmq_kernel_has_no_bare_codes(name: str) -> None:
    """Only small numbers and the masks of a byte and of 16 bits do without a name, and the constants of the hash."""
    allowed = {0xFF, 0xFFFF}
    bare = [
        (function.name, node.lineno, node.value)
        for function in ast.parse(SOURCES[name]).body
        if isinstance(function, ast.FunctionDef) and function.name != "spread"
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > 12 and node.value not in allowed
    ]
    assert not bare
