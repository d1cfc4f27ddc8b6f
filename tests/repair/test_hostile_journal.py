"""Journals of repairs from elsewhere: flipped bits, garbage, links, foreign owners, and manifests made to do harm with a right checksum.

The store comes out as intended, or byte for byte untouched, with one sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.golden import case_named, run_cli, tree_checksum, unpack
from support.repairs import image_of
from support.rocketmq_states import STATES

from mqstore.errors import CannotOpenError, MqstoreError, TargetError
from mqstore.places import open_rocketmq
from mqstore.repair import manifest
from mqstore.repair.change import Change, Step
from mqstore.repair.journal import PREPARED, StoreLocking, apply, read_journal, resume, undo
from mqstore.rocketmq.live.store_lock import StoreLock
from mqstore.rocketmq.repair.plan import LOCKING, plan

FLIPS = (0x01, 0x20, 0x80)
SETUID = 0o4755


def _step(*changes: Change) -> Step:
    return Step("test", "", 0, 0, "", "", "", changes)


EVERY_OPERATION = _step(
    Change("write", "log", 2, b"new bytes"),
    Change("write", "short", 4, b"past the end"),
    Change("resize", "long", length=3),
    Change("put", "config/table", content=b"{}"),
    Change("put", "file.new", content=b"made"),
    Change("rename", "file.bak", to="file"),
    Change("remove", "stray/note"),
    Change("rmdir", "stray"),
    Change("mkdir", "empty"),
)


def _store(place: Path) -> Path:
    store = place / "store"
    for name, content in (
        ("log", b"0123456789abcdef"),
        ("short", b"01234"),
        ("long", b"0123456789"),
        ("config/table", b'{"a":1}'),
        ("file.bak", b"renamed"),
        ("stray/note", b"stray"),
        ("lock", b"lock"),
    ):
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(content)
    (store / "commitlog").mkdir()
    return store


def _prepared(place: Path) -> tuple[Path, Path]:
    """Return a store and the journal of an apply that was interrupted before its first change."""
    store = _store(place)
    before = place / "before"
    shutil.copytree(store, before)
    apply(store, place / "undo", [EVERY_OPERATION], LOCKING)
    shutil.rmtree(store)
    before.rename(store)
    (place / "undo" / "state").write_text(PREPARED)
    return store, place / "undo"


def _sealed(journal: Path, change: Callable[[dict[str, Any]], None] | None = None, raw: bytes | None = None) -> None:
    """Change a manifest, and give it the checksum that fits, as somebody does who knows the format."""
    path = journal / "manifest.json"
    if raw is None:
        document = json.loads(path.read_text())
        if change is not None:
            change(document)
        raw = json.dumps(document, indent=1).encode()
    raw = re.sub(rb'"sha256": "[^"]*"', b'"sha256": "' + b"0" * 64 + b'"', raw, count=1)
    path.write_bytes(raw.replace(b"0" * 64, hashlib.sha256(raw).hexdigest().encode(), 1))


def _refused(store: Path, journal: Path, says: str) -> None:
    """Check that neither direction of the command changes anything, and that both say one sentence."""
    before, saved = tree_checksum(store), image_of(journal) if journal.is_dir() else None
    for direction in ("--apply", "--undo"):
        done = run_cli("repair", store, direction, "--journal", journal)
        assert (done.status, done.stdout) == (2, ""), done
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert says in done.stderr
    assert tree_checksum(store) == before
    assert saved is None or image_of(journal) == saved


def _golden(tmp_path: Path) -> tuple[Path, Path]:
    """Return a real store of which a repair was interrupted before its first change, and the journal."""
    store = unpack(case_named("4.9.3/m-damaged/0-clean"), tmp_path / "store")
    for name in ("body_flip", "stray_file"):
        STATES[name](store)
    shutil.copytree(store, tmp_path / "before")
    journal = tmp_path / "undo"
    apply(store, journal, [step for step in plan(open_rocketmq(store)) if step.possible], LOCKING)
    shutil.rmtree(store)
    (tmp_path / "before").rename(store)
    (journal / "state").write_text(PREPARED)
    return store, journal


def test_a_flipped_bit_in_any_byte_of_the_manifest_is_refused_by_apply_and_undo(tmp_path: Path) -> None:
    """`write` as `vrite` deleted a log file: an unknown operation meant that the tree was removed."""
    store, journal = _prepared(tmp_path)
    raw = (journal / "manifest.json").read_bytes()
    before = image_of(store)
    for at in range(len(raw)):
        for flip in FLIPS:
            (journal / "manifest.json").write_bytes(raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :])
            with pytest.raises(CannotOpenError, match="is not the journal of a repair"):
                read_journal(journal)
    for at in random.Random(7).sample(range(len(raw)), 12):
        (journal / "manifest.json").write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        _refused(store, journal, "is not the journal of a repair")
    assert image_of(store) == before
    (journal / "manifest.json").write_bytes(raw)
    found = read_journal(journal)
    assert found is not None
    resume(store, found, LOCKING)
    assert (store / "log").read_bytes() == b"01new bytesbcdef"
    found = read_journal(journal)
    assert found is not None
    undo(store, found, LOCKING)
    assert image_of(store) == before


def test_the_operation_of_a_real_journal_with_one_bit_changed_deletes_nothing(tmp_path: Path) -> None:
    store, journal = _golden(tmp_path)
    raw = (journal / "manifest.json").read_bytes()
    assert b'"op": "write"' in raw
    (journal / "manifest.json").write_bytes(raw.replace(b'"op": "write"', b'"op": "vrite"', 1))
    _refused(store, journal, "does not match its checksum")
    _sealed(journal)
    _refused(store, journal, "is an unknown operation")
    (journal / "manifest.json").write_bytes(raw)
    assert run_cli("repair", store, "--apply", "--journal", journal).status == 0


@pytest.mark.parametrize("undoing", [False, True], ids=["apply", "undo"])
def test_a_flipped_bit_under_a_right_checksum_reaches_nothing_outside_of_the_store(
    undoing: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = tmp_path / "place"
    _, journal = _prepared(place)
    raw = (journal / "manifest.json").read_bytes()
    (tmp_path / "secret").write_bytes(b"not of the store")
    at_random = random.Random(7)
    tried = [(at, flip) for at in range(raw.index(b'"store"'), len(raw)) for flip in FLIPS]
    ended = {"refused": 0, "done": 0}
    here = shutil.copytree(place, tmp_path / "here")
    before = _tree(here)
    for at, flip in tried if request.config.getoption("all") else at_random.sample(tried, 120):
        _sealed(here / "undo", raw=raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :])
        sentence = _followed(here / "store", here / "undo", undoing=undoing)
        ended["refused" if sentence else "done"] += 1
        assert "\n" not in sentence
        if (here / "undo").exists():
            (here / "undo" / "manifest.json").write_bytes(raw)
        after = _tree(here)
        assert all(mode & ~0o777 == 0 for mode, _ in after.values())
        assert (tmp_path / "secret").read_bytes() == b"not of the store"
        assert set(os.listdir(here)) <= {"store", "undo"}
        if after != before:
            assert "not the journal" not in sentence
            shutil.rmtree(here)
            shutil.copytree(place, here)
    assert ended["refused"] > ended["done"]


def _tree(place: Path) -> dict[str, tuple[int, bytes | None]]:
    """Return mode and content of each file, and the mode of each directory."""
    found: dict[str, tuple[int, bytes | None]] = {}
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.stat(path)
            found[path] = status.st_mode & 0o7777, Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else None
    return found


def _followed(store: Path, journal: Path, *, undoing: bool) -> str:
    """Follow a journal; return the sentence of a refusal, or nothing."""
    try:
        found = read_journal(journal)
        assert found is not None
        (undo if undoing else resume)(store, found, LOCKING)
    except MqstoreError as error:
        return str(error)
    return ""


def _set(number: int, field: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        found: Any = document["changes"][number]
        *above, last = field.split(".")
        for name in above:
            found = found[name]
        found[last] = value

    return change


def _drop(document: dict[str, Any]) -> None:
    del document["changes"][0]["new"]


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "unknown-operation": (_set(0, "op", "vrite"), "is an unknown operation"),
    "operation-is-a-list": (_set(0, "op", ["write"]), "is an unknown operation"),
    "field-missing": (_drop, "does not have the fields"),
    "field-more": (_set(8, "mode", 0o644), "does not have the fields"),
    "negative-offset": (_set(0, "offset", -1), "is not a number"),
    "offset-as-text": (_set(0, "offset", "2"), "is not a number"),
    "offset-as-truth": (_set(0, "offset", True), "is not a number"),
    "offset-too-large": (_set(0, "offset", 1 << 63), "is not a number"),
    "existed-as-number": (_set(0, "existed", 1), "neither true nor false"),
    "length-that-was-not": (_set(1, "old_length", 3), "contradict each other"),
    "above-the-store": (_set(3, "file", "../outside"), "not the name of a file below the store"),
    "absolute-file": (_set(3, "file", "/etc/hostname"), "not the name of a file below the store"),
    "the-store-itself": (_set(7, "file", ""), "not the name of a file below the store"),
    "rename-above": (_set(5, "to", "../outside"), "not the name of a file below the store"),
    "rename-onto-a-changed-file": (_set(5, "to", "log"), "a file that is renamed is changed as well"),
    "absolute-blob": (_set(3, "new.blob", "/etc/hostname"), "and not in 0003.new"),
    "blob-above": (_set(3, "new.blob", "../secret"), "and not in 0003.new"),
    "blob-of-another-change": (_set(3, "new.blob", "0004.new"), "and not in 0003.new"),
    "no-checksum": (_set(3, "new.sha256", ""), "is not one"),
    "no-size": (_set(3, "new", {"blob": "0003.new", "sha256": "0" * 64}), "does not have the fields"),
    "setuid": (_set(3, "mode", SETUID), "more than permission to read and write"),
    "changes-are-a-table": (lambda document: document.update(changes={}), "the changes are not a list"),
    "step-as-number": (_set(0, "step", 1), "is not a text"),
    "name-of-no-file": (_set(3, "file", "\ud800"), "cannot be the name of a file"),
    "executable": (_set(3, "mode", 0o755), "more than permission to read and write"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_manifest_made_to_do_harm_is_refused_with_its_right_checksum(name: str, tmp_path: Path) -> None:
    store, journal = _prepared(tmp_path)
    change, says = HOSTILE[name]
    _sealed(journal, change)
    _refused(store, journal, says)


def _truncated(journal: Path) -> None:
    path = journal / "manifest.json"
    path.write_bytes(path.read_bytes()[:-40])


def _format_1(journal: Path) -> None:
    (journal / "manifest.json").write_bytes(b'{\n "format": 1,\n "store": "/data/store",\n "changes": []\n}')


def _deep(journal: Path) -> None:
    _sealed(journal, raw=b'{\n "format": 2,\n "sha256": "",\n "changes": ' + b"[" * 200_000)


def _linked(name: str) -> Callable[[Path], None]:
    def link(journal: Path) -> None:
        (journal / name).rename(journal.parent / "elsewhere")
        (journal / name).symlink_to(journal.parent / "elsewhere")

    return link


def _cut_blob(journal: Path) -> None:
    (journal / "0004.new").write_bytes(b"mad")


def _lengthened_blob(journal: Path) -> None:
    with (journal / "0003.old").open("ab") as file:
        file.write(b"more")


def _linked_journal(journal: Path) -> None:
    journal.rename(journal.parent / "elsewhere")
    journal.symlink_to("elsewhere")


def _made(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda journal: (journal / name).write_bytes(content) and None


def _no_file(name: str) -> Callable[[Path], None]:
    return lambda journal: (journal / name).unlink()


def _fifo(journal: Path) -> None:
    (journal / "0003.new").unlink()
    os.mkfifo(journal / "0003.new")


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "garbage": (_made("manifest.json", b"\xff" * 500), "does not begin as one"),
    "empty": (_made("manifest.json", b""), "does not begin as one"),
    "truncated": (_truncated, "does not match its checksum"),
    "format-1": (_format_1, "without a checksum, of an earlier version"),
    "deep": (_deep, "is not JSON"),
    "no-manifest": (_no_file("manifest.json"), "has no manifest.json"),
    "no-state": (_no_file("state"), "No such file"),
    "state-of-a-flipped-bit": (_made("state", b"qrepared"), "has none of the states"),
    "state-too-long": (_made("state", b"prepared" * 100), "more than 64 bytes"),
    "other-files": (_made("notes.txt", b"of the user"), "'notes.txt', which does not belong to one"),
    "linked-manifest": (_linked("manifest.json"), "is a symbolic link"),
    "linked-state": (_linked("state"), "is a symbolic link"),
    "linked-blob": (_linked("0003.new"), "is a symbolic link"),
    "linked-journal": (_linked_journal, "is a symbolic link"),
    "cut-blob": (_cut_blob, "does not match its checksum"),
    "lengthened-blob": (_lengthened_blob, "does not match its checksum"),
    "missing-blob": (_no_file("0000.old"), "No such file"),
    "fifo-as-blob": (_fifo, "is a FIFO"),
    "writable-by-everybody": (lambda journal: journal.chmod(0o777), "can be written to by other users"),
    "writable-by-the-group": (lambda journal: journal.chmod(0o770), "can be written to by other users"),
}


@pytest.mark.parametrize("name", sorted(SPOILT))
def test_a_journal_that_is_not_as_it_was_written_is_refused(name: str, tmp_path: Path) -> None:
    store, journal = _prepared(tmp_path)
    spoil, says = SPOILT[name]
    spoil(journal)
    _refused(store, journal, says)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
@pytest.mark.parametrize("name", ["", "manifest.json", "state"])
def test_a_journal_of_another_user_is_refused_unless_that_user_owns_the_store(name: str, tmp_path: Path) -> None:
    store, journal = _prepared(tmp_path)
    os.chown(journal / name, 4711, 4711)
    _refused(store, journal, "belongs to user 4711")
    os.chown(store, 4711, 4711)
    assert run_cli("repair", store, "--undo", "--journal", journal).status == 0


LINKED = {"write": "log", "resize": "long", "put": "table", "remove": "note", "mkdir": "made", "rmdir": "made"}


@pytest.mark.parametrize("op", [*LINKED, "rename", "rename-to"])
def test_a_directory_that_is_a_link_leads_no_change_out_of_the_store(op: str, tmp_path: Path) -> None:
    """For the plan that `apply` is given, and for a journal of a store whose directory became a link afterwards."""
    outside = tmp_path / "outside"
    for place in (tmp_path / "store" / "inner", outside):
        place.mkdir(parents=True)
        for name in ("log", "long", "table", "note"):
            (place / name).write_bytes(b"0123456789")
    store = tmp_path / "store"
    (store / "log").write_bytes(b"0123456789")
    if op == "rename":
        change = Change("rename", "inner/log", to="other")
    elif op == "rename-to":
        change = Change("rename", "log", to="inner/other")
    else:
        change = Change(op, f"inner/{LINKED[op]}", content=b"abc", length=3)  # type: ignore[arg-type]
    if op == "rmdir":
        (store / "inner" / "made").mkdir()
        (outside / "made").mkdir()
    locking = StoreLocking(StoreLock, "lock")
    apply(store, tmp_path / "undo", [_step(change)], locking)
    shutil.rmtree(store / "inner")
    (store / "inner").symlink_to(outside)
    before, untouched = tree_checksum(store), tree_checksum(outside)
    for state in ("prepared", "applied", "undoing"):
        (tmp_path / "undo" / "state").write_text(state)
        found = read_journal(tmp_path / "undo")
        assert found is not None
        for follow in (resume, undo):
            with pytest.raises(TargetError, match="lies outside of the store"):
                follow(store, found, locking)
    with pytest.raises(TargetError, match="lies outside of the store"):
        apply(store, tmp_path / "other", [_step(change)], locking)
    assert (tree_checksum(store), tree_checksum(outside)) == (before, untouched)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("kind", ["symbolic link", "second hard link"])
def test_a_file_that_is_linked_stops_a_repair_before_its_first_change(kind: str, tmp_path: Path) -> None:
    store = _store(tmp_path)
    (store / "long").unlink()
    (tmp_path / "outside").write_bytes(b"0123456789")
    if kind == "symbolic link":
        (store / "long").symlink_to(tmp_path / "outside")
    else:
        os.link(tmp_path / "outside", store / "long")
    before = tree_checksum(store)
    with pytest.raises(TargetError, match=kind):
        apply(store, tmp_path / "undo", [EVERY_OPERATION], LOCKING)
    assert tree_checksum(store) == before
    assert not (tmp_path / "undo").exists()


def test_a_journal_is_private_and_a_file_comes_back_without_permission_to_be_run(tmp_path: Path) -> None:
    store = _store(tmp_path)
    (store / "config" / "table").chmod(SETUID)
    before = image_of(store)
    apply(store, tmp_path / "undo", [EVERY_OPERATION], LOCKING)
    assert (tmp_path / "undo").stat().st_mode & 0o777 == 0o700
    assert (store / "config" / "table").stat().st_mode & 0o7777 == SETUID & 0o666
    found = read_journal(tmp_path / "undo")
    assert found is not None
    undo(store, found, LOCKING)
    assert image_of(store) == before
    assert (store / "config" / "table").stat().st_mode & 0o7777 == SETUID & 0o666


def _directory_as_link(store: Path) -> None:
    (store / "config").rename(store / "real")
    (store / "config").symlink_to("real")


def _link_to_a_removed_file(store: Path) -> None:
    (store / "other").symlink_to("stray/note")


def _circle(store: Path) -> None:
    shutil.rmtree(store / "stray")
    (store / "stray").symlink_to("stray")


def _file_in_the_place_of_a_directory(store: Path) -> None:
    (store / "empty").write_bytes(b"a file")


def _directory_in_the_place_of_the_lock(store: Path) -> None:
    (store / "lock").unlink()
    (store / "lock").mkdir()


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "directory-as-link": (_directory_as_link, "which is in the same store; move it away first"),
    "link-to-a-removed-file": (_link_to_a_removed_file, "which a repair would take away"),
    "circle": (_circle, "cannot be reached"),
    "file-as-directory": (_file_in_the_place_of_a_directory, "is in the place of a directory"),
    "directory-as-lock": (_directory_in_the_place_of_the_lock, "no broker can lock the store by it"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_stands_in_the_way_of_a_change_stops_a_repair_before_the_first_one(name: str, tmp_path: Path) -> None:
    store = _store(tmp_path)
    change, says = REFUSED[name]
    change(store)
    before = tree_checksum(store)
    with pytest.raises(TargetError, match=says):
        apply(store, tmp_path / "undo", [EVERY_OPERATION], LOCKING)
    assert tree_checksum(store) == before
    assert not (tmp_path / "undo").exists()


def test_links_that_lead_elsewhere_or_nowhere_are_in_the_way_of_no_change(tmp_path: Path) -> None:
    store = _store(tmp_path)
    (store / "to-long").symlink_to("long")
    (store / "nowhere").symlink_to("nowhere")
    apply(store, tmp_path / "undo", [EVERY_OPERATION], LOCKING)
    assert (store / "log").read_bytes() == b"01new bytesbcdef"


@pytest.mark.parametrize("state", ["growing", "taken"])
def test_a_store_that_changes_while_the_journal_is_written_is_left_as_it_is(state: str, tmp_path: Path) -> None:
    store = _store(tmp_path)

    def meanwhile() -> bytes:
        if state == "growing":
            os.truncate(store / "log", 4)
        else:
            (store / "file").write_bytes(b"taken")
        return b"new bytes"

    says = "became shorter while it was saved" if state == "growing" else "exists by now, and file.bak cannot take its name"
    with pytest.raises(TargetError, match=says):
        apply(store, tmp_path / "undo", [_step(Change("write", "log", 2, meanwhile), Change("rename", "file.bak", to="file"))], LOCKING)
    assert (store / "file.bak").read_bytes() == b"renamed"
    assert not (tmp_path / "undo").exists()


def test_a_directory_that_got_another_file_is_not_taken_out(tmp_path: Path) -> None:
    store, journal = _prepared(tmp_path)
    (store / "stray" / "other").write_bytes(b"of somebody else")
    found = read_journal(journal)
    assert found is not None
    with pytest.raises(TargetError, match="holds something that the repair did not put aside"):
        resume(store, found, LOCKING)
    assert (store / "stray" / "other").read_bytes() == b"of somebody else"


def _other_bytes(store: Path) -> None:
    (store / "log").write_bytes(b"01other..bcdef..")


def _no_renamed_file(store: Path) -> None:
    (store / "file").unlink()


@pytest.mark.parametrize("change", [_other_bytes, _no_renamed_file])
def test_a_store_with_other_bytes_than_a_repair_left_is_not_undone(change: Callable[[Path], None], tmp_path: Path) -> None:
    store = _store(tmp_path)
    apply(store, tmp_path / "undo", [EVERY_OPERATION], LOCKING)
    found = read_journal(tmp_path / "undo")
    assert found is not None
    change(store)
    before = tree_checksum(store)
    with pytest.raises(TargetError, match="was changed after the repair"):
        undo(store, found, LOCKING)
    assert tree_checksum(store) == before


def test_undoing_removes_a_lock_that_was_not_there_and_makes_nothing_that_was_not_there(tmp_path: Path) -> None:
    store = _store(tmp_path)
    (store / "lock").unlink()
    before = image_of(store)
    others = _step(Change("remove", "none"), Change("rmdir", "nowhere"), Change("mkdir", "config"))
    found = apply(store, tmp_path / "undo", [EVERY_OPERATION, others], LOCKING)
    assert (store / "lock").exists()
    undo(store, found, LOCKING)
    assert image_of(store) == before


def test_more_changes_than_a_manifest_may_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _store(tmp_path)
    monkeypatch.setattr(manifest, "LARGEST_MANIFEST", 1000)
    before = tree_checksum(store)
    with pytest.raises(TargetError, match="9 changes are more than one journal holds; choose some of the steps with --only"):
        apply(store, tmp_path / "undo", [EVERY_OPERATION], LOCKING)
    assert tree_checksum(store) == before
