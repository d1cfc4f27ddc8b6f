"""The side files of a clean stop: read as the broker left them, written as it reads them, salvaged when damaged."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden as goldenkit
from support.golden import GoldenCase, case_id

from mqstore.findings import Kind
from mqstore.rabbitmq.erlang import dets, disk_log
from mqstore.rabbitmq.erlang.terms import Atom, ErlangTextError, Term, encode, read_text, write_text
from mqstore.rabbitmq.format import vhost_config
from mqstore.rabbitmq.format.recovery_terms import CleanDot, QueueTerms, read_clean_dot, read_terms, write_clean_dot, write_terms
from mqstore.rabbitmq.store.clean_tables import loadable

every_case = pytest.mark.parametrize("case", goldenkit.RABBITMQ, ids=case_id)
CLEAN = {"a-small-clean", "c-segments-16384", "d-large-fanout", "f-mixed-features", "g1-v2-small-clean"}


def found(case: GoldenCase, pattern: str) -> list[Path]:
    return sorted(goldenkit.opened(case).rglob(pattern))


# terms as text


def test_terms_are_read_in_every_notation() -> None:
    text = rb"""%% comment . {
    {a, 'B \'c\'', [1,-2|3]}."""
    with pytest.raises(ErlangTextError, match=r", or \] belongs here"):
        read_text(text)
    text = rb"""{a, 'B \'c\'', "s\n\x{e9}\101" "t", $a, $\n, 16#ff, -2#101, 1.5e3, <<>>, <<1,"ab",255>>, [], {}, #{}, #{1 => [2], b => c}} .
    atom_@1."""
    first, second = read_text(text)
    assert first == ("a", "B 'c'", list(b"s\n\xe9At"), 97, 10, 255, -5, 1500.0, b"", b"\x01ab\xff", [], (), {}, {1: [2], Atom("b"): "c"})
    assert second == "atom_@1"
    assert read_text("'é'. \"√\".".encode()) == [Atom("é"), [8730]]
    assert read_text("'é'.".encode("latin-1")) == [Atom("é")]
    assert read_text(b"") == []


@pytest.mark.parametrize(
    "text",
    [
        b"{a",
        b"a",
        b"a b.",
        b"{a,}.",
        b"{,a}.",
        b"[a}.",
        b"<<256>>.",
        b"<<a>>.",
        b'"open',
        b"'open",
        b"A.",
        b"#{a}.",
        b"#{[] => 1}.",
        b"1 2.",
        b"[" * 100_000,
        b"9" * 1000 + b".",
        b"99#1.",
        b"2#3.",
        b"{" * 70 + b"}" * 70 + b".",
        b'"\\x{110000}".',
        b"<<1:8>>.",
        b"'" + b"a" * 256 + b"'.",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_text_that_is_not_a_sequence_of_terms_is_refused(text: bytes) -> None:
    with pytest.raises(ErlangTextError):
        read_text(text)


texts = st.recursive(
    st.integers() | st.binary(max_size=20) | st.text(max_size=20).map(Atom) | st.floats(0.5, 1e9).map(lambda value: round(value, 3) + 0.5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.binary(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.lists(texts, max_size=3))
def test_terms_survive_their_text(terms: list[Term]) -> None:
    assert read_text(write_text(terms)) == terms


@settings(deadline=None)
@given(st.binary(max_size=80) | st.text("{}[]<>#=|,.'\"\\$%a1-+ \n", max_size=60).map(str.encode))
def test_arbitrary_text_is_terms_or_an_error(text: bytes) -> None:
    try:
        terms = read_text(text)
    except ErlangTextError as error:
        at = error.offset
    else:
        at = len(terms)
    assert 0 <= at <= len(text)


def test_values_that_have_no_text_are_refused() -> None:
    with pytest.raises(TypeError):
        write_text([None])


# .config and clean.dot


@every_case
def test_every_golden_config_and_clean_dot_is_written_back_byte_by_byte(case: GoldenCase) -> None:
    for path in found(case, ".config"):
        entries = vhost_config.segment_entry_count(path.read_bytes())
        assert entries == (16384 if case.name.startswith("c-") else 2048)
        assert vhost_config.config_file(entries) == path.read_bytes()
    for path in found(case, "clean.dot"):
        said = read_clean_dot(path.read_bytes())
        assert isinstance(said, CleanDot)
        assert write_clean_dot(said.references, said.index_module) == path.read_bytes()
    assert bool(found(case, "clean.dot")) == (case.name in CLEAN)


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{segment_entry_count, x}.", b"{segment_entry_count, 0}.", b"{segment_entry_count, 16385}.", b"\xff{", b"{a,1}."],
)
def test_without_a_readable_number_a_segment_has_16384_entries(content: bytes | None) -> None:
    assert vhost_config.segment_entry_count(content) == 16384
    if content is not None:
        assert isinstance(vhost_config.stated_entry_count(content), str)


def test_an_entry_count_that_is_too_large_is_not_written() -> None:
    with pytest.raises(ValueError, match="16384"):
        vhost_config.config_file(16385)


def test_a_printable_reference_is_read_as_text_too() -> None:
    assert read_clean_dot(b'{client_refs,[<<"abcdefghijklmnop">>]}.\n') == CleanDot(frozenset([b"abcdefghijklmnop"]), None)


@pytest.mark.parametrize("content", [b"", b"{client_refs,x}.", b"{client_refs,[1]}.", b"{"])
def test_an_invalid_clean_dot_has_a_reason(content: bytes) -> None:
    assert isinstance(read_clean_dot(content), str)


# disk logs


@every_case
def test_every_golden_saved_table_is_written_back_byte_by_byte(case: GoldenCase) -> None:
    paths = found(case, "*.ets")
    assert bool(paths) == (case.name in CLEAN)
    for path in paths:
        data = path.read_bytes()
        table = disk_log.read_table(data, path.name)
        assert table.whole
        assert loadable(np.frombuffer(data, np.uint8))
        assert disk_log.write_table(table) == data


def test_the_golden_message_index_has_the_place_of_every_record() -> None:
    case = goldenkit.case_named("3.10.8/d-large-fanout")
    (path,) = (path for path in found(case, "msg_store_index.ets") if "persistent" in path.parent.name)
    objects = disk_log.read_table(path.read_bytes()).objects
    known = {(f"{number}.rdq", offset, total, message_id.hex()) for _, message_id, _, number, offset, total in objects}
    wanted = goldenkit.rdq_oracle(case)["rdq"]
    records = {(name.rpartition("/")[2], *record) for name, file in wanted.items() if "persistent" in name for record in file["records"]}
    assert known <= records
    assert len(known) == 96


@given(st.lists(st.binary(max_size=30) | st.integers(), max_size=5), st.booleans(), st.data())
def test_a_torn_log_is_read_up_to_its_last_complete_item(terms: list[Term], closed: bool, data: st.DataObject) -> None:
    whole = disk_log.write_log(terms, closed)
    assert disk_log.read_log(whole) == disk_log.DiskLog(tuple(terms), closed, len(whole))
    cut = data.draw(st.integers(8, len(whole)))
    log = disk_log.read_log(whole[:cut])
    assert list(log.terms) == terms[: len(log.terms)]
    assert log.end <= cut
    assert disk_log.read_log(whole + bytes(64)).terms == tuple(terms)


def test_a_long_item_needs_its_checksum() -> None:
    term = bytes(70_000)
    log = disk_log.write_log([term, b"after"])
    assert disk_log.read_log(log).terms == (term, b"after")
    assert log[16:20] != b"\x83m\x00\x01"
    broken = bytearray(log)
    broken[20] ^= 1
    read = disk_log.read_log(bytes(broken), "LATEST.LOG")
    assert read.terms == ()
    assert [(item.file, item.offset, item.kind) for item in read.damage] == [("LATEST.LOG", 8, Kind.BAD_SIDE_FILE)]


def test_an_item_that_is_not_a_term_is_reported_and_skipped() -> None:
    log = bytearray(disk_log.write_log([b"one", b"two", b"three"]))
    log[disk_log.write_log([b"one"]).__len__() + 8] = 0
    read = disk_log.read_log(bytes(log))
    assert read.terms == (b"one", b"three")
    assert len(read.damage) == 1
    assert not disk_log.read_table(bytes(log)).whole


def test_old_items_are_read() -> None:
    octets = encode(b"old")
    assert disk_log.read_log(disk_log.MAGIC + disk_log.OPENED + len(octets).to_bytes(4, "big") + disk_log.OLD_ITEM + octets).terms == (
        b"old",
    )


@pytest.mark.parametrize("data", [b"", b"\x01\x02\x03\x04", b"junk" * 100, disk_log.MAGIC + b"????"])
def test_a_file_that_is_not_a_disk_log_is_reported(data: bytes) -> None:
    log = disk_log.read_log(data)
    assert log.terms == ()
    assert [item.kind for item in log.damage] == [Kind.BAD_SIDE_FILE]
    assert not loadable(np.frombuffer(data, np.uint8))


@given(st.data())
def test_a_truncated_table_is_not_complete_and_a_node_loads_it_once_its_properties_are_there(data: st.DataObject) -> None:
    whole = disk_log.write_table(disk_log.SavedTable((Atom("p"),), tuple(range(30)), True))
    cut = data.draw(st.integers(0, len(whole) - 1))
    properties = next(disk_log.items(whole))
    assert loadable(np.frombuffer(whole[:cut], np.uint8)) is (cut >= properties.start + properties.length)
    assert not disk_log.read_table(whole[:cut]).whole


# recovery.dets


@every_case
def test_every_golden_recovery_table_is_read_through_its_slots_and_by_searching_alike(case: GoldenCase) -> None:
    counts: dict[str, int] = {}
    for path in found(case, "recovery.dets"):
        data = path.read_bytes()
        table = dets.read_table(data)
        assert (table.closed, table.salvaged, table.damage) == (True, False, ())
        opened = bytearray(data)
        opened[8:12] = bytes(4)
        searched = dets.read_table(bytes(opened))
        assert (searched.closed, searched.salvaged, searched.damage) == (False, True, ())
        assert sorted(map(encode, searched.objects)) == sorted(map(encode, table.objects))
        terms = read_terms(dets.read_objects(data))
        assert set(terms) == {directory.name for directory in (path.parent / "queues").iterdir()} if case.name in CLEAN else not terms
        assert read_terms(dets.read_objects(write_terms(terms))) == terms
        for path_, said in ((path.parent / "msg_store_persistent" / "clean.dot", terms),):
            if path_.exists():
                clean = read_clean_dot(path_.read_bytes())
                assert isinstance(clean, CleanDot)
                assert clean.references == {each.reference for each in said.values()}
        for name, each in terms.items():
            counts[name] = counts.get(name, 0) + (each.count or 0)
            assert (each.v2_segments is not None) == case.name.startswith("g")
    if case.name in CLEAN:
        rows = goldenkit.expected(case)
        assert sum(counts.values()) == sum(row["persistent"] and row["recovered"] for row in rows)


keys = st.text("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=1, max_size=25)
numbers = st.integers(0, (1 << 62) - 1)
counts_ = st.dictionaries(st.integers(0, 1 << 40), numbers, max_size=40)
queue_terms = st.builds(
    QueueTerms, counts_, st.none(), numbers, numbers, st.binary(min_size=16, max_size=16), numbers, numbers
) | st.builds(QueueTerms, st.none(), counts_, numbers, numbers, st.binary(min_size=16, max_size=16), numbers, numbers)


@settings(deadline=None)
@given(st.dictionaries(keys, queue_terms, max_size=6))
def test_terms_survive_their_table(terms: dict[str, QueueTerms]) -> None:
    assert read_terms(dets.read_objects(write_terms(terms))) == terms


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_damaged_table_yields_only_objects_that_it_had(data: st.DataObject) -> None:
    case = goldenkit.case_named("3.10.8/f-mixed-features")
    path = found(case, "recovery.dets")[1]
    octets = bytearray(path.read_bytes())
    sound = {encode(item) for item in dets.read_table(bytes(octets)).objects}
    start = data.draw(st.integers(0, len(octets) - 1))
    stop = data.draw(st.integers(start, min(len(octets), start + 64)))
    octets[start:stop] = bytes(stop - start)
    if data.draw(st.booleans()):
        del octets[data.draw(st.integers(0, len(octets))) :]
    table = dets.read_table(bytes(octets), "recovery.dets")
    intact = [term for term in sound if term in bytes(octets)]
    for item in table.objects:
        assert isinstance(item, tuple)
    if not table.salvaged:
        assert len(table.objects) == len(sound)
    # an object with untouched bytes and header is found
    heads = [octets.find(term) - 12 for term in intact]
    sure = [
        term
        for term, at in zip(intact, heads, strict=True)
        if at >= 0 and octets[at + 4 : at + 8] == dets.ACTIVE and octets[at + 8 : at + 12] == (len(term) + 4).to_bytes(4, "big")
    ]
    if table.salvaged:
        assert {encode(item) for item in table.objects} >= set(sure) or any(item.kind is Kind.BAD_SIDE_FILE for item in table.damage)


def header(**words: int) -> bytearray:
    names = ("free", "cookie", "closed", "type", "format", "m", "next", "keypos", "objects", "keys", "slots", "most", "hash", "n")
    values = dict(zip(names, (0, dets.COOKIE, 1, 1, 9, 256, 256, 1, 0, 0, 256, 33554432, 1, 0), strict=True)) | words
    return bytearray(b"".join((values[name]).to_bytes(4, "big") for name in names) + bytes(1280))


@pytest.mark.parametrize(
    "name",
    [
        "every segment at one place",
        "every block at one place",
        "a place beyond the end",
        "a slot beyond the end",
        "4 billion objects",
        "overlapping blocks",
        "only marks",
    ],
)
def test_hostile_tables_are_read_quickly(name: str) -> None:
    table = header()
    if name == "every segment at one place":
        table[dets.SEGMENTS : dets.HEADER_END] = (dets.HEADER_END).to_bytes(4, "big") * 256
        table += (dets.HEADER_END).to_bytes(4, "big") * 4096
    elif name == "every block at one place":
        table[dets.SEGMENTS : dets.SEGMENTS + 4] = (dets.HEADER_END).to_bytes(4, "big")
        table += (dets.HEADER_END).to_bytes(4, "big") * 4096
    elif name == "a place beyond the end":
        table[dets.SEGMENTS : dets.SEGMENTS + 4] = b"\xff\xff\xff\xf0"
    elif name == "a slot beyond the end":
        place = dets.HEADER_END
        table[dets.SEGMENTS : dets.SEGMENTS + 4] = place.to_bytes(4, "big")
        table += (place + 2048).to_bytes(4, "big") + bytes(2044) + b"\xff\xff\xff\xff" * 512
    elif name == "4 billion objects":
        table = header(objects=(1 << 32) - 1)
    elif name == "overlapping blocks":
        table = header(closed=0) + (b"\x00\x0f\x00\x00" + dets.ACTIVE + b"\x00\x0e\xff\x00" + b"\x83h\xff") * 100_000
    else:
        table = header(closed=0) + dets.ACTIVE * 1_000_000
    started = time.perf_counter()
    read = dets.read_table(bytes(table), "recovery.dets")
    assert time.perf_counter() - started < 20
    assert read.objects == ()
    assert read.salvaged
    assert 1 <= len(read.damage) <= dets.MAX_FINDINGS + 2


def test_a_file_of_another_kind_is_reported_and_searched() -> None:
    item = encode((list(b"KEY"), [])).hex()
    block = bytes.fromhex(f"{12 + len(item) // 2:08x}12345678{4 + len(item) // 2:08x}{item}")
    read = dets.read_table(b"no table " * 200 + block, "recovery.dets")
    assert read.objects == ((list(b"KEY"), []),)
    assert [damage.kind for damage in read.damage] == [Kind.BAD_SIDE_FILE]


@pytest.mark.parametrize(
    "value", [b"no list", [1, 2], [(Atom("next_seq_id"), Atom("x"))], [(Atom("segments"), 7)], [(Atom("segments"), [(1, -1)])]], ids=repr
)
def test_values_that_are_not_terms_of_a_queue_are_skipped(value: Term) -> None:
    terms = read_terms([(list(b"KEY"), value), (b"binary", []), ([], [])])
    assert terms in ({}, {"KEY": QueueTerms(None, None, None, None, None, None, None)})


ERLANG = shutil.which("erl")


@pytest.mark.skipif(ERLANG is None, reason="needs Erlang")
@pytest.mark.parametrize("count", [0, 1, 40])
def test_erlang_opens_the_table_we_write_and_we_read_the_one_it_leaves(tmp_path: Path, count: int) -> None:
    assert ERLANG is not None
    terms = {f"QUEUE{k}": QueueTerms({k: 2 * k, k + 1: 1}, None, k, k, bytes([k] * 16), k, k) for k in range(count)}
    path = tmp_path / "recovery.dets"
    path.write_bytes(write_terms(terms))
    program = (
        f'{{ok, T}} = dets:open_file(t, [{{file, "{path}"}}, {{ram_file, true}}, {{auto_save, infinity}}]),'
        ' io:format("~w", [dets:info(T, no_objects)]), ok = dets:insert(T, {"NEW", []}), ok = dets:close(T), halt().'
    )
    done = subprocess.run([ERLANG, "-noshell", "-eval", program], capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout.split()[-1].rpartition(".")[2]) == count
    read = dets.read_table(path.read_bytes())
    assert (read.closed, read.salvaged, read.damage) == (True, False, ())
    again = read_terms(dets.read_objects(path.read_bytes()))
    assert {name: again[name] for name in terms} == terms
    assert set(again) == {*terms, "NEW"}


@pytest.mark.skipif(ERLANG is None, reason="needs Erlang")
def test_erlang_reads_the_saved_table_and_the_text_we_write(tmp_path: Path) -> None:
    assert ERLANG is not None
    case = goldenkit.case_named("3.10.8/d-large-fanout")
    (path,) = (path for path in found(case, "file_summary.ets") if "persistent" in path.parent.name)
    (tmp_path / "t.ets").write_bytes(disk_log.write_table(disk_log.read_table(path.read_bytes())))
    terms = [(Atom("end"), Atom("A b'c\\d"), [b"\x00\xff", -5], 1.5, {1: Atom("Ünï")})]
    (tmp_path / "t.dot").write_bytes(b"%% -*- coding: utf-8 -*-\n" + write_text(terms))
    program = (
        f'{{ok, T}} = ets:file2tab("{tmp_path}/t.ets"), {{ok, [D]}} = file:consult("{tmp_path}/t.dot"),'
        ' io:format("~w ~s", [ets:info(T, size), binary:encode_hex(term_to_binary(D))]), halt().'
    )
    done = subprocess.run([ERLANG, "-noshell", "-eval", program], capture_output=True, text=True, timeout=300, check=True)
    size, term = done.stdout.split()[-2:]
    assert int(size) == len(disk_log.read_table(path.read_bytes()).objects)
    assert bytes.fromhex(term) == encode(terms[0])
