"""Our store and the real one lock each other out of a directory with the real store's own lock file."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.realbroker import VERSIONS, oracle, why_not
from interop.replaying import settings

from mqstore.errors import TargetError
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores"), pytest.mark.parametrize("version", VERSIONS)]

OPTIONS = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "100", "maxIndexNum": "400"}


@contextlib.contextmanager
def real_store(version: str, store: Path) -> Iterator[dict[str, Any]]:
    """Start the real store on a directory until the end of the block, and yield what it prints."""
    reason = why_not(version)
    if reason is not None:
        pytest.skip(reason)
    command = oracle(version, "lock", str(store), *(f"-C{name}={value}" for name, value in OPTIONS.items()))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.communicate(timeout=300)


def written(version: str, store: Path) -> MessageStore:
    made = MessageStore.open(store, settings(version, OPTIONS))
    assert made.put(Message("orders", b"paid", keys="o-1")).stored
    made.dispatch_now()
    return made


def test_the_real_store_does_not_start_on_a_store_that_we_have_open(version: str, tmp_path: Path) -> None:
    with written(version, tmp_path), real_store(version, tmp_path) as said:
        assert said["locked"] is False
        assert "Lock failed" in said["error"]
    with real_store(version, tmp_path) as said:
        assert said == {"load_ok": True, "locked": True}


def test_we_do_not_open_a_store_that_the_real_one_has(version: str, tmp_path: Path) -> None:
    written(version, tmp_path).close()
    with real_store(version, tmp_path) as said:
        assert said["locked"] is True
        with pytest.raises(TargetError, match="in use by another process"):
            MessageStore.open(tmp_path, settings(version, OPTIONS))
    with MessageStore.open(tmp_path, settings(version, OPTIONS)) as store:
        assert store.max_offset("orders", 0) == 1
