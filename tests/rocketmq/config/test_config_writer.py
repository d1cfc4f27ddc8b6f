"""Configuration files as written: the brokers' text, and what a crash or an error at any step leaves."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import CASES, GoldenCase, case_id, opened

from mqstore.errors import TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.recorder import Operation, RecordedWrites, Sync, SyncDirectory, Truncate, Write
from mqstore.rocketmq.append.delay import DelayOffsetTable
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.config_writer import ConfigWriter, DataVersion, bean, save, to_text
from mqstore.rocketmq.config.consumer_offsets import ConsumerOffsets
from mqstore.rocketmq.config.topic_table import SubscriptionGroups, Topics

VERSIONS = ("4.9.3", "5.3.3")
NAME = "config/consumerOffset.json"
KINDS = {
    "topics.json": Topics,
    "subscriptionGroup.json": SubscriptionGroups,
    "consumerOffset.json": ConsumerOffsets,
    "delayOffset.json": DelayOffsetTable,
}
WRITTEN = [
    (case, name)
    for case in CASES
    for name in KINDS
    if case.id in ("4.9.3/e-delay-transaction-batch", "4.9.3/f-broker-offsets", "5.3.3/j-broker-offsets")
]


# the text


@pytest.mark.parametrize(("case", "name"), WRITTEN, ids=lambda part: case_id(part) or str(part))
@pytest.mark.parametrize("which", ["", ".bak"])
def test_a_brokers_file_is_written_again_byte_for_byte(case: GoldenCase, name: str, which: str, tmp_path: Path) -> None:
    original = (opened(case) / "config" / f"{name}{which}").read_bytes()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / name).write_bytes(original)
    table = KINDS[name].load(ReadOnlyDirectory(tmp_path), case.version)
    assert table.findings == ()
    with DurableDirectory(tmp_path) as directory:
        assert table.persist(directory)
    assert (tmp_path / "config" / name).read_bytes() == original


def test_what_is_empty_has_no_line_breaks_and_what_has_no_value_is_left_out() -> None:
    assert to_text({}) == "{}"
    assert to_text({"a": {}, "b": [], "c": None, "d": {"e": None}}) == '{\n\t"a":{},\n\t"b":[],\n\t"d":{}\n}'


def test_number_keys_stand_on_one_line_and_beans_below_them_do_not() -> None:
    """As fastjson 1.2.76 and 1.2.83 print a map of integers to an empty map, a map and a text."""
    assert to_text({"im": {1: {}, 2: {"k": 1}, 3: "s"}}) == '{\n\t"im":{1:{},2:{\n\t\t\t"k":1\n\t\t},3:"s"\n\t}\n}'


def test_a_set_of_beans_has_its_braces_on_the_lines_of_the_set() -> None:
    """As fastjson prints the subscriptionDataSet of a group."""
    assert to_text({"subs": [{"topic": "t"}, {"topic": "u"}]}) == '{\n\t"subs":[{\n\t\t"topic":"t"\n\t},{\n\t\t"topic":"u"\n\t}]\n}'


def test_control_characters_are_escaped_and_all_other_text_is_not() -> None:
    """The list is what fastjson 1.2.83 escapes among all 65,536 code units, in keys as in values."""
    escaped = {0x22: '\\"', 0x5C: "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}
    escaped = {code: f"\\u{code:04X}" for code in (*range(0x20), *range(0x7F, 0xA0))} | escaped
    for code in range(0x10000):
        shown = escaped.get(code, chr(code))
        assert to_text({f"k{chr(code)}": f"v{chr(code)}"}) == f'{{\n\t"k{shown}":"v{shown}"\n}}'


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_what_is_written_is_read_back(value: dict[str, object]) -> None:
    assert fastjson.parse(to_text(value)) == value


@given(st.dictionaries(st.integers(), st.integers(), max_size=5))
def test_number_keys_are_read_back_as_their_digits(value: dict[int, int]) -> None:
    assert fastjson.parse(to_text({"offsetTable": value})) == {"offsetTable": {str(key): number for key, number in value.items()}}


def test_beans_are_in_the_order_of_their_names() -> None:
    assert list(bean({"perm": 6, "order": False, "attributes": {}})) == ["attributes", "order", "perm"]


def test_a_data_version_counts_on_and_has_a_state_version_in_5_x_only() -> None:
    version = DataVersion.of({"counter": 7, "timestamp": 5})
    version.next(9)
    assert version.value(True) == {"counter": 8, "stateVersion": 0, "timestamp": 9}
    assert version.value(False) == {"counter": 8, "timestamp": 9}
    assert DataVersion.of({"counter": "x", "timestamp": True}, lambda: 3) == DataVersion(3)


# the steps


def saved(root: Path) -> object:
    """What a broker would take from the directory."""
    return fastjson.load(ReadOnlyDirectory(root), NAME).value


def contents(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (root / "config").iterdir()}


def text(number: int) -> str:
    """Texts of one length: a part of one over another could be read."""
    return to_text({"offsetTable": {f"topic-{queue}@group": {0: number} for queue in range(60)}})


OLD, NEW = text(1111), text(2222)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_bak_is_the_predecessor_and_nothing_else_stays(version: str, tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as directory:
        save(directory, NAME, OLD, version)
        assert contents(tmp_path) == {"consumerOffset.json": OLD}
        save(directory, NAME, NEW, version)
        assert contents(tmp_path) == {"consumerOffset.json": NEW, "consumerOffset.json.bak": OLD}
        save(directory, NAME, "{}", version)
        assert contents(tmp_path) == {"consumerOffset.json": "{}", "consumerOffset.json.bak": NEW}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("broken", [b"", b"{", bytes(100), OLD.encode()[:500]])
def test_a_file_that_cannot_be_loaded_does_not_take_the_place_of_its_bak(version: str, broken: bytes, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / NAME).write_bytes(broken)
    (tmp_path / f"{NAME}.bak").write_text(OLD)
    with DurableDirectory(tmp_path) as directory:
        save(directory, NAME, NEW, version)
    assert contents(tmp_path) == {"consumerOffset.json": NEW, "consumerOffset.json.bak": OLD}


def test_a_lone_surrogate_becomes_a_question_mark(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as directory:
        save(directory, NAME, to_text({"a\ud800": 1}), "5.3.3")
    assert saved(tmp_path) == {"a?": 1}


def test_a_writer_writes_only_what_is_new(tmp_path: Path) -> None:
    recorded = RecordedWrites()
    writer = ConfigWriter(NAME, "4.9.3")
    with DurableDirectory(tmp_path, recorder=recorded) as directory:
        assert writer.write(directory, lambda: OLD)
        count = len(recorded.operations)
        assert not writer.write(directory, lambda: OLD)
        assert len(recorded.operations) == count
        assert writer.write(directory, lambda: NEW)
    assert contents(tmp_path) == {"consumerOffset.json": NEW, "consumerOffset.json.bak": OLD}


# crashes

BEFORE = {
    "nothing": {},
    "a file": {NAME: OLD},
    "a file and its bak": {NAME: OLD, f"{NAME}.bak": text(3333)},
    "a damaged file and its bak": {NAME: OLD[:700], f"{NAME}.bak": OLD},
    "only a bak": {f"{NAME}.bak": OLD},
    "what a crash left": {NAME: OLD, f"{NAME}.bak": text(3333)[:99], f"{NAME}.tmp": text(4444)[:800]},
}


def lay_out(root: Path, files: dict[str, str]) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for relative, content in files.items():
        (root / relative).parent.mkdir(exist_ok=True)
        (root / relative).write_text(content)
    return root


def unsynced(operations: list[Operation]) -> Iterator[int]:
    """The changes of a file that no sync of it follows."""
    for number, operation in enumerate(operations):
        if isinstance(operation, Write | Truncate) and Sync(operation.path) not in operations[number:]:
            yield number


def crashes(recorded: RecordedWrites) -> Iterator[tuple[str, RecordedWrites, bool]]:
    """(what is lost, the operations that count, whether what is unsynced is lost) at every point of a run."""
    for upto in range(len(recorded.operations) + 1):
        done = recorded.operations[:upto]
        yield f"{upto}: nothing", RecordedWrites(list(done)), False
        yield f"{upto}: all that is unsynced", RecordedWrites(list(done)), True
        for number in unsynced(done):
            yield f"{upto}: operation {number}", RecordedWrites(done[:number] + done[number + 1 :]), False
        if done and isinstance(last := done[-1], Write):
            for part in (1, len(last.data) // 2, 512, len(last.data) - 1):
                torn = [*done[:-1], Write(last.path, last.offset, last.data[:part])]
                yield f"{upto}: the end of a write from {part} on", RecordedWrites(torn), False
                for number in unsynced(torn[:-1]):
                    yield f"{upto}: operation {number}, and the end of a write", RecordedWrites(torn[:number] + torn[number + 1 :]), False


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("before", BEFORE)
def test_a_crash_at_any_point_leaves_the_old_value_or_the_new_one(version: str, before: str, tmp_path: Path) -> None:
    recorded = RecordedWrites()
    with DurableDirectory(lay_out(tmp_path / "run", BEFORE[before]), recorder=recorded) as directory:
        old = saved(tmp_path / "run")
        save(directory, NAME, NEW, version)
    new = saved(tmp_path / "run")
    assert old != new
    states = 0
    for lost, left, lose_unsynced in crashes(recorded):
        root = lay_out(tmp_path / "crashed", BEFORE[before])
        left.replay(root, lose_unsynced=lose_unsynced)
        found = saved(root)
        assert found in (old, new), f"a crash that lost {lost} left {contents(root)}"
        if len(left.operations) == len(recorded.operations):
            assert found == new, "what was saved is lost"
        with DurableDirectory(root) as directory:
            save(directory, NAME, OLD, version)
        assert saved(root) == fastjson.parse(OLD), f"after a crash that lost {lost} nothing can be saved"
        states += 1
    assert states > 2 * len(recorded.operations)


def test_the_syncs_are_what_makes_it_so(tmp_path: Path) -> None:
    """The same crashes without a sync do lose the value, in both procedures."""
    for version in VERSIONS:
        recorded = RecordedWrites()
        with DurableDirectory(lay_out(tmp_path / "run", BEFORE["a file"]), recorder=recorded) as directory:
            save(directory, NAME, NEW, version)
        bare = RecordedWrites([each for each in recorded.operations if not isinstance(each, Sync | SyncDirectory)])
        values = []
        for _, left, lose_unsynced in crashes(bare):
            root = lay_out(tmp_path / "crashed", BEFORE["a file"])
            left.replay(root, lose_unsynced=lose_unsynced)
            values.append(saved(root))
        assert any(value not in (fastjson.parse(OLD), fastjson.parse(NEW)) for value in values)


class FailsAt(RecordedWrites):
    """Lets the n-th change of the disk fail."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def attempt(self, operation: str, relative: str) -> None:
        super().attempt(operation, relative)
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, "no space left")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("before", BEFORE)
def test_a_full_disk_at_any_step_is_an_error_and_the_next_save_makes_good(version: str, before: str, tmp_path: Path) -> None:
    failures = 0
    while True:
        root = lay_out(tmp_path / "run", BEFORE[before])
        old = saved(root)
        writer = ConfigWriter(NAME, version)
        with DurableDirectory(root, recorder=FailsAt(failures + 1)) as directory:
            with contextlib.suppress(TargetError):
                writer.write(directory, lambda: NEW)
                break
            assert saved(root) in (old, fastjson.parse(NEW))
            assert writer.write(directory, lambda: NEW)
        assert saved(root) == fastjson.parse(NEW)
        failures += 1
    assert failures >= 4
