"""Background jobs: what reads a whole store, and replay. They report progress and can be cancelled.

Two jobs run at a time; the others wait. Starting a job again over the same state of a store returns the existing job. The most recent
finished jobs are kept. The checks of a store are its verbs; a small store is checked as soon as its page is opened. It is small if little
is stored on this machine's disk, whatever the size of its files, which may be mostly holes; a store at a URL is never read as a whole
without being asked.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mqstore.console.stores import OpenStore
from mqstore.errors import MqstoreError, NotFoundError, UsageError
from mqstore.files.location import Url
from mqstore.rabbitmq.queue_states import depths_beside, queue_depths
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq.store.timeline import timeline
from mqstore.table.formatting import printable

KEPT = 200
WAITING = 20
SMALL = 256 << 20
_BLOCK = 512

Progress = Callable[[int, int], None]
Work = Callable[[Progress], Any]


class State(StrEnum):
    """State of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CancelledError(MqstoreError):
    """The job was cancelled."""


@dataclass(slots=True, eq=False)
class Job:
    """A background job. store: number of the store it reads, or None. done, total: in units of `unit`; total 0: unknown.

    result: what the work returned; error: a sentence. writes: repeating it has an effect.
    """

    id: str
    kind: str
    title: str
    store: int | None
    key: Hashable
    unit: str = "bytes"
    writes: bool = False
    state: State = State.WAITING
    done: int = 0
    total: int = 0
    result: Any = None
    error: str = ""
    started: float = 0.0
    ended: float = 0.0
    stop: bool = False
    settled: threading.Event = field(default_factory=threading.Event)

    @property
    def over(self) -> bool:
        return self.state in (State.DONE, State.FAILED, State.CANCELLED)

    @property
    def seconds(self) -> float:
        """Running time in seconds."""
        if not self.started:
            return 0.0
        return (self.ended or time.monotonic()) - self.started

    @property
    def share(self) -> float | None:
        """Completed fraction, 0 to 1; None if unknown. What a finished job did not have to read counts as read."""
        if self.state is State.DONE:
            return 1.0
        return min(1.0, self.done / self.total) if self.total > 0 else None

    def progress(self, done: int, total: int) -> None:
        """Record progress; called by the work. Raises CancelledError once the job is cancelled."""
        if self.stop:
            raise CancelledError("the job was cancelled")
        self.done, self.total = done, total


class Jobs:
    """The jobs of one console."""

    def __init__(self, width: int = 2) -> None:
        self._pool = ThreadPoolExecutor(width, thread_name_prefix="job")
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def start(
        self,
        kind: str,
        title: str,
        work: Work,
        *,
        store: int | None = None,
        key: Hashable = None,
        unit: str = "bytes",
        writes: bool = False,
        again: bool = False,
    ) -> Job:
        """Start a job, or return the running or finished one of the same kind and key. again: ignore finished jobs. Raises UsageError."""
        with self._lock:
            if key is not None:
                for job in reversed(self._jobs.values()):
                    usable = not job.over or (job.state is State.DONE and not again)
                    if job.kind == kind and job.key == key and usable and not job.stop:
                        return job
            if sum(not job.over for job in self._jobs.values()) >= WAITING:
                raise UsageError(f"{WAITING} jobs are already running or waiting; wait for one to finish, or cancel one")
            job = Job(secrets.token_hex(8), kind, title, store, key, unit, writes)
            self._jobs[job.id] = job
            self._forget()
        self._pool.submit(self._run, job, work)
        return job

    def _forget(self) -> None:
        over = [job for job in self._jobs.values() if job.over]
        for job in over[: max(0, len(over) - KEPT)]:
            del self._jobs[job.id]

    def _run(self, job: Job, work: Work) -> None:
        try:
            job.progress(0, 0)
            job.started = time.monotonic()
            job.state = State.RUNNING
            job.result = work(job.progress)
            state = State.DONE
        except CancelledError:
            state = State.CANCELLED
        except MqstoreError as error:
            job.error, state = str(error), State.FAILED
        except OSError as error:
            job.error, state = f"{error.filename or 'the operating system'}: {error.strerror or error}", State.FAILED
        except MemoryError:
            job.error, state = "out of memory; narrow the query, or give the process more memory", State.FAILED
        except Exception as error:
            job.error = f"a bug in mqstore, not in the store: {type(error).__name__}: {printable(str(error))}; please report it"
            state = State.FAILED
        job.ended = time.monotonic()
        job.state = state
        job.settled.set()

    def get(self, job_id: str) -> Job:
        """Return a job by id. Raises NotFoundError."""
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError("there is no such job; it finished long ago, or the console was restarted")
        return job

    def find(self, kind: str, key: Hashable) -> Job | None:
        """Return the newest job of a kind and key that is not cancelled or failed, or None."""
        with self._lock:
            fitting = [job for job in self._jobs.values() if job.kind == kind and job.key == key]
        return next((job for job in reversed(fitting) if job.state not in (State.CANCELLED, State.FAILED)), None)

    def all(self) -> list[Job]:
        """Return all jobs, newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def cancel(self, job: Job) -> None:
        """Cancel a job; it stops at its next progress report."""
        job.stop = True

    def close(self) -> None:
        """Cancel all jobs and wait for them."""
        for job in self.all():
            job.stop = True
        self._pool.shutdown(wait=True, cancel_futures=True)


# checks of a store


@dataclass(frozen=True, slots=True)
class NoDiagnosis:
    """There is no diagnosis. why: a sentence."""

    why: str


def is_small(opened: OpenStore) -> bool:
    """Return whether a store can be read as a whole while a page waits."""
    if isinstance(opened.store.path, Url):
        return False
    stored = (entry.blocks * _BLOCK or entry.size for _, entry in opened.store.directory.walk())
    return opened.cached("small", lambda: sum(stored) <= SMALL)


def _diagnose(opened: OpenStore, progress: Progress) -> Any:
    try:
        return opened.store.diagnose(progress=progress)
    except CancelledError:
        raise
    except MqstoreError as error:
        return NoDiagnosis(str(error))


def _draw(opened: OpenStore, progress: Progress) -> Any:
    store = opened.store
    return (*queue_depths(store), *depths_beside(store)) if isinstance(store, RabbitMQStore) else timeline(opened.view("disk"))


CHECKS: dict[str, tuple[str, Callable[[OpenStore, Progress], Any], str]] = {
    "diagnose": ("Diagnosing", _diagnose, "queues"),
    "verify": ("Verifying", lambda opened, progress: opened.store.verify(progress=progress), "index entries"),
    "usage": ("Counting", lambda opened, progress: opened.store.usage(progress=progress), "queues"),
    "draw": ("Drawing", _draw, "queues"),
    "look": ("Examining", lambda opened, _: opened.store.summary(), "vhosts"),
}


def start_check(jobs: Jobs, opened: OpenStore, kind: str, *, again: bool = False) -> Job:
    """Start a check, or return the one that is running or, without `again`, done."""
    title, work, unit = CHECKS[kind]
    return jobs.start(
        kind,
        f"{title} {opened.name}",
        lambda progress: work(opened, progress),
        store=opened.number,
        key=opened.key,
        unit="bytes" if opened.family == "rocketmq" else unit,
        again=again,
    )


def result_of(jobs: Jobs, opened: OpenStore, kind: str) -> Any:
    """Return the result of the last check of a kind of this state of a store, or None."""
    job = jobs.find(kind, opened.key)
    return job.result if job is not None and job.state is State.DONE else None
