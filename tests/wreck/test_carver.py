"""Carving finds the same in any splits and windows: golden stores of both brokers, nested stores, hostile bytes, holes, bad blocks."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.golden import CASES, OTHER_RABBITMQ, RABBITMQ, case_named
from support.images import files_of, noise_of, shuffled_image
from support.rabbitmq_index import message_id, term

from mqstore.errors import CannotOpenError
from mqstore.files.image import Image
from mqstore.kernels.rabbitmq import message_store
from mqstore.kernels.rocketmq import frames
from mqstore.rabbitmq.format import message_file
from mqstore.rocketmq.format.record import Record, encode, frame_size
from mqstore.wreck import carving as carver
from mqstore.wreck.carving import FROM, KIND, TO, Content, Joined, carve_range, nonzero_bounds


def carved(path: Path, split: int) -> Content:
    with Image(path) as image:
        joined = Joined(image)
        for start in range(0, image.size, split):
            joined.add(Content.from_bytes(carve_range(image, start, start + split).to_bytes()))
        return joined.finish()


def comparable(found: Content) -> list[object]:
    runs = [(run.base, run.positions.tolist(), run.end, run.filled) for run in found.runs]
    gaps = [(gap.start, gap.low, gap.high, gap.stop) for gap in found.gaps]
    return [found.end, runs, found.messages.tolist(), gaps, found.unreadable]


def rocketmq(number: int, body: bytes, at: int = 0) -> bytes:
    return encode(Record("orders", body, queue_offset=number, physical_offset=at))


def stored(number: int, body: bytes) -> bytes:
    return message_file.record(message_id(number), term(message_id(number), body))


@pytest.fixture(scope="module")
def golden_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an image of small stores of both brokers."""
    cases = [case_named("4.9.3/b-kill9"), *(each for each in (*RABBITMQ, *OTHER_RABBITMQ) if each.name in SMALL)]
    path = tmp_path_factory.mktemp("image") / "disk.img"
    path.write_bytes(shuffled_image(files_of(cases), 11))
    return path


SMALL = ("a-small-clean", "f-mixed-features", "g1-v2-small-clean", "a-v2-kill9")


@pytest.mark.parametrize("split", [1 << 20, 100_003, 4096])
def test_splits_find_what_one_pass_finds(split: int, golden_image: Path) -> None:
    whole = carved(golden_image, 1 << 40)
    assert whole.records > 100
    assert whole.messages.shape[1] > 100
    assert comparable(carved(golden_image, split)) == comparable(whole)


@pytest.mark.parametrize("window", [1 << 20, 70_001, 9000])
def test_nothing_depends_on_where_a_window_begins(window: int, golden_image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = carved(golden_image, 1 << 40)
    monkeypatch.setattr(carver, "WINDOW", window)
    assert comparable(carved(golden_image, 1 << 40)) == comparable(whole)
    assert comparable(carved(golden_image, 200_000)) == comparable(whole)


@pytest.mark.parametrize("split", [257, 1000, 4096])
def test_a_dledger_log_is_one_run_in_any_splits(split: int) -> None:
    path = next(path for path in files_of([case_named("5.5.0/g-dledger")], "dledger-n0/data"))
    whole = carved(path, 1 << 40)
    assert len(whole.runs) == 1
    assert whole.records == 40
    # splits that begin at the end of a record, too
    ends = [int(at) for at in whole.runs[0].positions[1:] - frames.ENTRY_HEADER_SIZE]
    with Image(path) as image:
        joined = Joined(image)
        bounds = sorted({*range(0, image.size, split), *ends, image.size})
        for start, stop in pairwise(bounds):
            joined.add(carve_range(image, start, stop))
        assert comparable(joined.finish()) == comparable(whole)


@pytest.mark.parametrize("window", [300, 1000, 3900, 4099])
def test_a_dledger_log_is_one_run_wherever_a_window_ends(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(path for path in files_of([case_named("5.5.0/g-dledger")], "dledger-n0/data"))
    whole = carved(path, 1 << 40)
    monkeypatch.setattr(carver, "WINDOW", window)
    assert comparable(carved(path, 1 << 40)) == comparable(whole)
    assert comparable(carved(path, 1000)) == comparable(whole)


@pytest.mark.parametrize("window", [300, 1000])
def test_a_run_goes_on_to_the_last_entry_that_begins_in_its_range(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(path for path in files_of([case_named("5.5.0/g-dledger")], "dledger-n0/data"))
    starts = (carved(path, 1 << 40).runs[0].positions - frames.ENTRY_HEADER_SIZE).tolist()
    monkeypatch.setattr(carver, "WINDOW", window)
    with Image(path) as image:
        for number, start in enumerate(starts[1:], 1):
            for stop, count in ((start, number), (start + 1, number + 1)):
                assert carve_range(image, 0, stop).records == count


def test_a_message_longer_than_a_window_is_found_though_a_split_begins_in_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "disk.img"
    path.write_bytes(b"not a message" * 20 + stored(1, b"x" * 9000) + stored(2, b"y"))
    start = 13 * 20
    whole = carved(path, 1 << 40)
    assert whole.messages[FROM].tolist()[0] == start
    monkeypatch.setattr(carver, "WINDOW", 4099)
    for inside in range(60):
        assert comparable(carved(path, start + inside)) == comparable(whole), inside


def test_findings_account_for_every_byte_once(golden_image: Path) -> None:
    found = carved(golden_image, 300_000)
    ranges = [(gap.start, gap.stop) for gap in found.gaps]
    ranges += [(run.start, run.filled) for run in found.runs]
    ranges += list(zip(found.messages[FROM].tolist(), found.messages[TO].tolist(), strict=True))
    at = 0
    for low, high in sorted(ranges):
        assert low == at
        at = high
    assert at == golden_image.stat().st_size


@pytest.mark.parametrize("split", [1 << 40, 4096, 10_000])
def test_a_store_that_was_sent_as_a_message_is_one_message(split: int, tmp_path: Path) -> None:
    log = b""
    for number in range(40):
        log += rocketmq(number, b"x" * 300, len(log))
    rdq = b"".join(stored(number, b"y" * 200) for number in range(40))
    outer = [rocketmq(0, log + rdq, 7_000_000), stored(99, log + rdq), rocketmq(1, rdq, 9_000_000), stored(98, log)]
    image = b"".join(noise_of(random.Random(at), 300) + each for at, each in enumerate(outer))
    path = tmp_path / "image"
    path.write_bytes(image)
    found = carved(path, split)
    assert [run.base + run.start for run in found.runs] == [7_000_000, 9_000_000]
    assert found.messages[KIND].tolist() == [message_store.RECORD] * 2


@pytest.mark.parametrize("size", [300, 70_000, 3_000_000])
def test_a_message_larger_than_the_window_is_found(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carver, "WINDOW", 65_536)
    body = np.random.default_rng(4).integers(0, 256, size, np.uint8).tobytes()
    image = b"junk" + rocketmq(1, body) + stored(5, body) + b"\0" * 100 + rocketmq(2, body, 1 << 40) + stored(6, body)
    path = tmp_path / "image"
    path.write_bytes(image)
    for split in (1 << 40, 50_000):
        found = carved(path, split)
        assert found.records == 2
        assert found.messages[KIND].tolist() == [message_store.RECORD] * 2
        assert [gap.stop - gap.start for gap in found.gaps] == [4, 100]


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x7f\xff\xff\xff\xda\xa3\x20\xa7" + bytes(28),  # heads of records of 2 GiB
        b"\0\0\x10\0\xda\xa3\x20\xa7" + b"\0" * 36,
        b"\x83h\x06d\0\x0dbasic_message" + b"l\x00\xff\xff\xff",  # heads of messages with endless lists
        b"\0\0\0\0\x3f\xff\xff\xff" + b"i" * 16 + b"\x83h\x06d\0\x0dbasic_messageh\x04",
        b"\x83",
        b"\xda\xa3\x20\xa7",
    ],
)
def test_hostile_bytes_take_linear_time_and_hold_nothing(hostile: bytes, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(hostile * (2_000_000 // len(hostile)))
    found = carved(path, 1 << 20)
    assert not found.runs
    assert not found.messages.shape[1]
    assert found.end == path.stat().st_size


def test_holes_of_a_sparse_image_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "image"
    far = 1 << 43
    with path.open("wb") as file:
        file.write(rocketmq(1, b"first"))
        file.seek(far)
        file.write(b"\0" * 20 + stored(3, b"second"))
    found = carved(path, 1 << 42)
    assert (found.records, found.messages.shape[1]) == (1, 1)
    assert found.messages[FROM, 0] == far + 20
    assert [gap.low for gap in found.gaps] == [-1]


def test_blocks_that_cannot_be_read_are_reported_and_the_rest_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "image"
    one = rocketmq(1, b"a" * 3000) + bytes(2000)
    path.write_bytes(b"".join(one for _ in range(200)))
    bad = (300_000, 300_000 + 9 * 4096)
    real = os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], at: int) -> int:
        """Read as a disk with a bad range does: up to it, and not from it."""
        low, high = bad[0] // 4096 * 4096, bad[1] // 4096 * 4096
        if low <= at < high:
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, [buffers[0][: low - at]] if at < low else buffers, at)

    whole = carved(path, 1 << 40)
    monkeypatch.setattr(os, "preadv", preadv)
    found = carved(path, 1 << 40)
    low, high = found.unreadable[0]
    assert len(found.unreadable) == 1
    assert (low, high) == (bad[0] // 4096 * 4096, bad[1] // 4096 * 4096)
    readable = [run.start for run in whole.runs if run.end <= low or run.start >= high]
    assert [run.start for run in found.runs] == readable
    assert comparable(carved(path, 65_536)) == comparable(found)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_a_fifo_or_an_endless_device_is_refused_in_one_sentence(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "image")
    with pytest.raises(CannotOpenError, match="not a regular file"):
        Image(tmp_path / "image")


def test_an_entry_whose_checksum_does_not_fit_is_damaged(tmp_path: Path) -> None:
    case = case_named("3.10.8/g1-v2-small-clean")
    path = next(each for each in files_of([case]) if each.suffix == ".qs" and each.stat().st_size > 500)
    raw = bytearray(path.read_bytes())
    found = carved(path, 1 << 40)
    assert set(found.messages[KIND].tolist()) == {message_store.ENTRY}
    start, end = int(found.messages[2, 0]), int(found.messages[3, 0])
    place = raw.index(b"m", start + 100, end) + 6  # within a binary
    raw[place] ^= 1
    changed = tmp_path / "changed"
    changed.write_bytes(raw)
    kinds = carved(changed, 1 << 40).messages[KIND].tolist()
    assert kinds[0] == message_store.DAMAGED_ENTRY
    assert set(kinds[1:]) == {message_store.ENTRY}


def test_frame_size_agrees_with_the_record_at_every_cut() -> None:
    raw = rocketmq(1, b"body" * 30, 77)

    def size(length: int) -> int:
        return frame_size(lambda start, stop: raw[:length][start:stop], 0, 77)

    assert [size(length) for length in range(len(raw))] == [0] * len(raw)
    assert size(len(raw)) == len(raw)
    assert frame_size(lambda start, stop: raw[start:stop], 0, 78) == 0


@pytest.mark.parametrize(
    ("raw", "bounds"), [(b"", (-1, -1)), (bytes(9000), (-1, -1)), (b"\0\1\0", (1, 2)), (bytes(9000) + b"\1", (9000, 9001))]
)
def test_bounds_of_what_is_not_zero(raw: bytes, bounds: tuple[int, int]) -> None:
    assert nonzero_bounds(np.frombuffer(raw, np.uint8)) == bounds
    if bounds[0] >= 0:
        assert nonzero_bounds(np.frombuffer(raw + bytes(3_000_000), np.uint8)) == bounds


def test_the_cases_of_this_module_exist() -> None:
    assert set(SMALL) <= {case.name for case in (*CASES, *RABBITMQ, *OTHER_RABBITMQ)}
