"""A process that holds a store's lock from the planning of a job's write until its commit.

Spark plans a write in one Python process and commits it in another, and either may end at any time, but the lock of a store belongs to
a process (`mqstore.files.locking`). So a separate process holds it, one for each store and job, where a job is what owns a stage
(`staging.job_owner`), the Java process of Spark. Writes of one job share it. It ends with the job, or a minute after its last write.

    hold        the lock is held from now on, for a stage. Done at once if this job holds it already
    lend        the lock is free, until the connection is closed: the caller takes it and commits
    release     a stage needs the lock no longer; so does one whose directory was removed

Requests are JSON documents over a socket without a file (unix(7), abstract), which only this user may use. The lock is free for a
moment when it is lent. A process that takes it then is waited for, as without a keeper: the commit decides nothing before it has the lock.
Only on Linux; elsewhere `hold` takes the lock and releases it, so that a store in use is noticed before rows are staged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mqstore.errors import MqstoreError, TargetError
from mqstore.files.durable import DurableDirectory
from mqstore.rocketmq.engine.staging import job_owner, started
from mqstore.rocketmq.live.store_lock import StoreInUseError, StoreLock

POLL = 0.2
LINGER = 60.0  # seconds without a stage after which the process ends
ANSWER = 30.0  # seconds after which a process that does not answer is given up
LOOK = 1.0  # seconds between two looks for removed stages
_POSSIBLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
_MOST = 65536  # bytes of a message
_PEER = struct.Struct("3i")  # ucred: process, user, group
_RUN = "import sys; sys.path[:0] = {path!r}; from mqstore.rocketmq.engine.lock_keeper import serve; serve(*{arguments!r})"


# the writer's side


def hold(store: Path, stage: Path, patience: float) -> None:
    """Have the lock of a store held for a stage, until it is released, its directory is removed, or the job ends.

    patience: seconds to wait for another process to release it. Raises StoreInUseError, TargetError.
    """
    end = time.monotonic() + patience
    while True:
        try:
            return _hold(store, stage)
        except StoreInUseError:
            if time.monotonic() >= end:
                raise
        time.sleep(POLL)


def _hold(store: Path, stage: Path) -> None:
    answer = _ask(store, "hold", stage, start=True)
    if answer is None:  # no such process here: at least notice that the store is in use
        with DurableDirectory(store) as directory:
            StoreLock(directory).close()
    elif "error" in answer:
        raise (StoreInUseError if answer["in_use"] else TargetError)(str(answer["error"]))


@contextlib.contextmanager
def lent(store: Path, stage: Path) -> Iterator[None]:
    """Let this process take the lock that is held for a stage, which is released at the end of the block."""
    with _connection(store) as connection:
        if connection is not None:
            _exchange(connection, "lend", stage)
        try:
            yield
        finally:
            if connection is not None:
                _exchange(connection, "release", stage)


def release(store: Path, stage: Path) -> None:
    """Release what is held for a stage; does nothing if nothing is."""
    _ask(store, "release", stage, start=False)


def _ask(store: Path, request: str, stage: Path, *, start: bool) -> dict[str, Any] | None:
    """Return the answer of the keeper; None if there is none."""
    for _ in range(3):  # one that is about to end does not answer
        with _connection(store) as connection:
            answer = None if connection is None else _exchange(connection, request, stage)
        if answer is not None:
            return answer
        if not start or not _start(store):
            break
    return None


def _exchange(connection: socket.socket, request: str, stage: Path) -> dict[str, Any] | None:
    """Return the answer; None if the process ended meanwhile."""
    try:
        connection.send(json.dumps({"request": request, "stage": str(stage)}).encode())
        return dict(json.loads(connection.recv(_MOST) or b"null") or {}) or None
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _connection(store: Path) -> Iterator[socket.socket | None]:
    """Connect to the keeper of a store for this job; None if there is none."""
    if not _POSSIBLE:
        yield None
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER)
        try:
            connection.connect(_address(store))
            mine = _is_mine(connection)
        except OSError:
            mine = False
        yield connection if mine else None


def _start(store: Path) -> bool:
    """Start the keeper of a store for this job, unless it runs. Return whether that is possible."""
    if not _POSSIBLE:
        return False
    owner = job_owner()
    arguments = (str(store), _address(store), owner["pid"], owner["started"])
    program = _RUN.format(path=[each for each in sys.path if each], arguments=arguments)
    nothing = subprocess.DEVNULL
    try:
        # it returns when the process listens
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            cwd="/",
            start_new_session=True,
            timeout=ANSWER,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _address(store: Path) -> str:
    identity = json.dumps([os.geteuid(), os.path.realpath(store), job_owner()])
    return f"\0mqstore-sink-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:40]}"


def _is_mine(connection: socket.socket) -> bool:
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(peer)[1] == os.geteuid())


# the process


def serve(store: str, address: str, owner: int, owner_started: str) -> None:
    """Listen, and continue in a separate process while the owner runs. Returns at once if another process listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        try:
            listening.bind(address)
        except OSError:
            return
        listening.listen()
        if os.fork():
            os._exit(0)
        with contextlib.suppress(OSError), selectors.DefaultSelector() as waiting:
            process = os.pidfd_open(owner)
            if started(owner) != owner_started:
                return
            waiting.register(process, selectors.EVENT_READ)
            waiting.register(listening, selectors.EVENT_READ)
            _Keeper(Path(store)).run(listening, process, waiting)


class _Keeper:
    """What the process knows: the stages that need the lock, and the connections to which it is lent."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock: StoreLock | None = None
        self._stages: dict[Path, bool] = {}  # whether its directory has been seen
        self._lent: set[socket.socket] = set()
        self._looked = 0.0

    def run(self, listening: socket.socket, owner: int, waiting: selectors.BaseSelector) -> None:
        """Answer requests until the owner ends or nothing has been asked for a while."""
        idle_since = time.monotonic()
        while self._stages or self._lent or time.monotonic() - idle_since < LINGER:
            for key, _ in waiting.select(POLL):
                if key.fileobj == owner:
                    return
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    connection.settimeout(ANSWER)
                    waiting.register(connection, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket) and not self._answer(key.fileobj):
                    waiting.unregister(key.fileobj)
                    self._lent.discard(key.fileobj)
                    key.fileobj.close()
            self._drop_removed()
            self._take_back()
            if self._stages or self._lent:
                idle_since = time.monotonic()

    def _answer(self, connection: socket.socket) -> bool:
        """Answer a request. Return False if the connection is to be closed."""
        try:
            asked = json.loads(connection.recv(_MOST) or b"null")
            if asked is None or not _is_mine(connection):
                return False
            answer = self._do(connection, asked["request"], Path(asked["stage"]))
            connection.send(json.dumps(answer).encode())
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return True

    def _do(self, connection: socket.socket, request: str, stage: Path) -> dict[str, Any]:
        if request == "hold":
            if self._lock is None and not self._lent:
                try:
                    self._take()
                except MqstoreError as error:
                    return {"error": str(error), "in_use": isinstance(error, StoreInUseError)}
            self._stages[stage] = self._stages.get(stage, False) or stage.is_dir()
        elif request == "lend":
            self._lent.add(connection)
            self._free()
        else:
            self._stages.pop(stage, None)
            self._lent.discard(connection)
            self._take_back()
        return {"done": request, "process": os.getpid()}

    def _take(self) -> None:
        with DurableDirectory(self._store) as directory:
            self._lock = StoreLock(directory)

    def _free(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_back(self) -> None:
        """Hold the lock exactly while a stage needs it and it is not lent. While another process has it: later."""
        if not self._stages or self._lent:
            self._free()
        elif self._lock is None:
            with contextlib.suppress(MqstoreError):
                self._take()

    def _drop_removed(self) -> None:
        if time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        for stage, seen in [*self._stages.items()]:
            there = stage.is_dir()
            if seen and not there:
                del self._stages[stage]
            elif there:
                self._stages[stage] = True
