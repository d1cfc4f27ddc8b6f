"""The layouts stand once for C, in the kernels' `.pxd` files, and once for Python, in the formats: both say the same."""

import ast
import re
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import mqstore.kernels
from mqstore.kernels.rabbitmq import message_terms
from mqstore.kernels.rocketmq import record_decode
from mqstore.rabbitmq.erlang import etf, terms
from mqstore.rabbitmq.format import index_v2, journal, message_file, segment
from mqstore.rabbitmq.message import message_term, properties
from mqstore.rabbitmq.quorum import wal
from mqstore.rocketmq.dispatch.dispatcher import KEY_ROW
from mqstore.rocketmq.format import consume_queue, index_geometry, record

ROOT = Path(mqstore.kernels.__file__).parent
RABBITMQ = sorted(ROOT.glob("rabbitmq/*.py"))


@cache
def constants(name: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the constants of a .pxd: the members of its enums and the names that stand for a #define; and those it takes from others."""
    source = ROOT.joinpath(*name.split(".")).with_suffix(".pxd").read_text(encoding="utf-8")
    taken: dict[str, int] = {}
    for other, one, several in re.findall(r"^from mqstore\.kernels\.(\S+) cimport (?:\(\n([^)]*)\)|(.*))", source, re.MULTILINE):
        theirs = constants(other)[0]
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


def places(form: struct.Struct | np.dtype) -> list[int]:
    """Return where the fields of a format of Python start, and where it ends."""
    if isinstance(form, np.dtype):
        return [*(form.fields[name][1] for name in form.names), form.itemsize]
    codes = re.findall(r"\d*[a-zA-Z]", form.format)
    return [struct.calcsize(">" + "".join(codes[:count])) for count in range(len(codes) + 1)]


BEFORE_HOSTS = [
    "AT_SIZE",
    "AT_MAGIC",
    "AT_BODY_CRC",
    "AT_QUEUE_ID",
    "AT_FLAG",
    "AT_QUEUE_OFFSET",
    "AT_PHYSICAL_OFFSET",
    "AT_SYS_FLAG",
    "AT_BORN_TIMESTAMP",
    "AT_BORN_HOST",
]
AFTER_BORN_HOST = ["AT_STORE_TIMESTAMP", "AT_STORE_HOST"]
AFTER_HOSTS = ["AT_RECONSUME_TIMES", "AT_PREPARED_OFFSET", "AT_BODY_LENGTH", "AT_BODY"]


def test_a_record_has_its_fields_where_the_codec_has_them() -> None:
    layout, host = constants("rocketmq.record_layout")[0], record.HOST_SIZE
    fields = [(name, 0) for name in BEFORE_HOSTS] + [(name, host) for name in AFTER_BORN_HOST] + [(name, 2 * host) for name in AFTER_HOSTS]
    assert [layout[name] + hosts for name, hosts in fields] == places(record._IPV4)


@pytest.mark.parametrize(
    ("layout", "names", "form", "before"),
    [
        ("rocketmq.entry_layout", "ENTRY_AT_OFFSET ENTRY_AT_SIZE ENTRY_AT_TAGS_CODE ENTRY_SIZE", consume_queue.ENTRY, 0),
        ("rocketmq.entry_layout", "KEY_AT_HASH KEY_AT_OFFSET KEY_AT_TIMESTAMP KEY_SIZE", KEY_ROW, 0),
        (
            "rocketmq.entry_layout",
            "INDEX_AT_HASH INDEX_AT_OFFSET INDEX_AT_SECONDS INDEX_AT_PREVIOUS INDEX_ENTRY_SIZE",
            index_geometry.ENTRY,
            0,
        ),
        ("rabbitmq.index_layout", "- - AT_EXPIRY AT_SIZE AT_EMBEDDED FIELDS_SIZE", journal.PUBLISH_ACTION, journal.ID_AT),
        ("rabbitmq.index_layout", "- - AT_EXPIRY AT_SIZE AT_EMBEDDED FIELDS_SIZE", segment._PUBLISH, segment.ID_AT),
        ("rabbitmq.store_layout", "- RECORD_AT_ID RECORD_AT_TERM", message_file._HEADER, 0),
        ("rabbitmq.store_layout", "ENTRY_AT_SIZE ENTRY_AT_FLAGS ENTRY_AT_CRC ENTRY_AT_PADDING ENTRY_HEADER_SIZE", index_v2._STORE_ENTRY, 0),
    ],
)
def test_a_layout_has_its_fields_where_the_format_has_them(layout: str, names: str, form: struct.Struct | np.dtype, before: int) -> None:
    """before: bytes of the format that come before what the layout counts from."""
    known = constants(layout)[0]
    found = {name: place - before for name, place in zip(names.split(), places(form), strict=True) if name != "-"}
    assert {name: known[name] for name in found} == found


SAME = {
    "rocketmq.record_layout": {
        "MAGIC_V1": record.MAGIC_V1,
        "MAGIC_V2": record.MAGIC_V2,
        "MAGIC_BLANK": record.MAGIC_BLANK,
        "MAGIC_FIRST_BYTE": record.MAGIC_V1 >> 24 & 0xFF,
        "AT_MAGIC": record.MAGIC_AT,
        "AT_BODY_CRC": record.BODY_CRC_AT,
        "AT_PHYSICAL_OFFSET": record.PHYSICAL_OFFSET_AT,
        "AT_SYS_FLAG": record.SYS_FLAG_AT,
        "AT_BORN_HOST": record.BORN_HOST_AT,
        "IPV4_HOST_SIZE": record.HOST_SIZE,
        "IPV6_HOST_SIZE": record.IPV6_HOST_SIZE,
        "MIN_RECORD_SIZE": record.MIN_RECORD_SIZE,
        "COMPRESSED": record.COMPRESSED,
        "TRANSACTION_MASK": record.TRANSACTION_MASK,
        "TRANSACTION_NONE": record.TRANSACTION_NONE,
        "TRANSACTION_PREPARED": record.TRANSACTION_PREPARED,
        "TRANSACTION_COMMIT": record.TRANSACTION_COMMIT,
        "TRANSACTION_ROLLBACK": record.TRANSACTION_ROLLBACK,
        "BORN_HOST_IPV6": record.BORN_HOST_IPV6,
        "STORE_HOST_IPV6": record.STORE_HOST_IPV6,
        "CRC_PROPERTY_SIZE": record.CRC_PROPERTY_SIZE,
        "CRC_NAME_SIZE": len(record.CRC_NAME),
        **{f"WORD_{name}": int.from_bytes(name.encode(), "big") for name in ("TAGS", "KEYS", "UNIQ_KEY")},
        "WORD_DELA": int.from_bytes(b"DELAY"[:4], "big"),
        "WORD_INNE": int.from_bytes(b"INNER_MULTI_DISPATCH"[:4], "big"),
        "WORD_CRC_FIRST": int.from_bytes(record.CRC_NAME[:4], "big"),
        "WORD_CRC_SECOND": int.from_bytes(record.CRC_NAME[4:], "big"),
    },
    "rocketmq.entry_layout": {"INDEX_HEADER_SIZE": index_geometry.HEADER_SIZE, "INDEX_SLOT_SIZE": index_geometry.SLOT_SIZE},
    "rocketmq.record_decode": {name.upper(): place for place, name in enumerate(record_decode.FIELDS)},
    "rabbitmq.index_layout": {
        "PUBLISH": journal.PUBLISH,
        "PUBLISH_TRANSIENT": journal.PUBLISH_TRANSIENT,
        "DELIVER": journal.DELIVER,
        "ACKNOWLEDGE": journal.ACKNOWLEDGE,
        "JOURNAL_PUBLISH_SIZE": journal.PUBLISH_SIZE,
        "JOURNAL_WORD_SIZE": journal.ID_AT,
        "SEGMENT_PUBLISH_SIZE": segment.PUBLISH_SIZE,
        "SEGMENT_MARK_SIZE": segment.MARK_SIZE,
        "SEGMENT_WORD_SIZE": segment.ID_AT,
    },
    "rabbitmq.store_layout": {"RECORD_MIN_SIZE": message_file.OVERHEAD},
    "rabbitmq.wal_records": {
        **{name.upper(): place for place, name in enumerate(wal.RECORD.names or ()) if name != "uid"},
        "MEMBER": 0,
        "AT_ENTRY": 3 + wal.WORDS.size,
        "KNOWN_BIT": wal.KNOWN_ID >> 16,
        "TRUNCATES_BIT": wal.TRUNCATES >> 16,
        "NUMBER_BITS": wal.NUMBER >> 16,
    },
    "rabbitmq.term_layout": {
        "VERSION": terms.VERSION,
        "COMPRESSED": etf.COMPRESSED,
        "ID_SIZE": message_term.ID_SIZE,
        "BASIC_CLASS": message_term.CLASS_BASIC,
        "MAX_ELEMENTS": etf.LIMITS.terms,
        "MAX_NESTING": etf.LIMITS.depth,
        "MAX_LETTERS": terms.MAX_ATOM_LENGTH,
    },
    "rabbitmq.message_terms": {"MOST_TABLE_BYTES": properties.MAX_FIELDS},
    "common.loads": {"TWO31": 1 << 31, "TWO32": 1 << 32, "LOW32": (1 << 32) - 1, "UNIQ_KEY": int.from_bytes(b"UNIQ_KEY", "big")},
}


@pytest.mark.parametrize("name", SAME)
def test_a_constant_for_c_is_that_for_python(name: str) -> None:
    known = constants(name)[0]
    assert {constant: known[constant] for constant in SAME[name]} == SAME[name]


def test_the_names_in_message_terms_are_where_the_layout_says() -> None:
    layout = constants("rabbitmq.term_layout")[0]
    names = message_terms.NAMES.tobytes()
    at = 0
    stored = ("basic_message", "resource", "exchange", "content", "none", "rabbit_framing_amqp_0_9_1", "true", "false")
    for name in (*stored, "$usr", "enqueue", "e", "mc", "mc_amqpl", "requeue"):
        constant = "FRAMING" if "framing" in name else name.upper().removeprefix("$")
        assert (layout[constant], layout[f"{constant}_SIZE"]) == (at, len(name))
        assert names[at : at + len(name)] == name.encode()
        at += len(name)
    assert at == len(names)


@pytest.mark.parametrize("path", RABBITMQ, ids=lambda path: path.stem)
def test_the_code_of_a_rabbitmq_kernel_has_no_bare_codes(path: Path) -> None:
    """Only small numbers and the masks of a byte and of 16 bits do without a name, and the constants of the hash."""
    allowed = {0xFF, 0xFFFF}
    bare = [
        (function.name, node.lineno, node.value)
        for function in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(function, ast.FunctionDef) and function.name != "spread"
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > 12 and node.value not in allowed
    ]
    assert not bare
