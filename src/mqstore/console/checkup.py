"""What the overview of a store is made of: its picture for any store, and diagnose, verify and usage at once if the store is small.

The checks are the functions of the commands with the same names. A store is small if little is stored on this machine's disk, whatever the
size of its files, which may be mostly holes; a store at a URL is never read as a whole without being asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mqstore.console.jobs import CancelledError, Job, Jobs, Progress, State
from mqstore.console.queue_states import queue_depths
from mqstore.console.stores import OpenStore
from mqstore.console.timeline import timeline
from mqstore.diagnosis import Diagnosis
from mqstore.errors import MqstoreError
from mqstore.files.location import Url
from mqstore.findings import Report
from mqstore.rabbitmq.store.store import RabbitMQStore

SMALL = 256 << 20
_BLOCK = 512


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


def _diagnose(opened: OpenStore, progress: Progress) -> Diagnosis | NoDiagnosis:
    try:
        return opened.store.diagnose(progress=progress)
    except CancelledError:
        raise
    except MqstoreError as error:
        return NoDiagnosis(str(error))


def _verify(opened: OpenStore, progress: Progress) -> Report:
    return opened.store.verify(progress=progress)


def _usage(opened: OpenStore, progress: Progress) -> Any:
    return opened.store.usage(progress=progress)


def _draw(opened: OpenStore, progress: Progress) -> Any:
    store = opened.store
    return queue_depths(store) if isinstance(store, RabbitMQStore) else timeline(opened.view("disk"))


CHECKS: dict[str, tuple[str, Callable[[OpenStore, Progress], Any], str]] = {
    "diagnose": ("Diagnosing", _diagnose, "queues"),
    "verify": ("Verifying", _verify, "index entries"),
    "usage": ("Counting", _usage, "queues"),
    "draw": ("Drawing", _draw, "queues"),
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
