"""Jobs: their progress, how they end, and that they do not block other requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.console import golden, visiting, words

from mqstore.console import jobs as module
from mqstore.console.jobs import Jobs, Progress, State
from mqstore.errors import NotFoundError, TargetError, UsageError


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    made.close()


class Gate:
    """Work that continues until it is released or cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, progress: Progress) -> str:
        self.begun.set()
        step = 0
        while not self.go.wait(0.005):
            step += 1
            progress(step, 0)
        return "done"


def test_a_finished_job_has_its_result(jobs: Jobs) -> None:
    job = jobs.start("sum", "Summing", lambda progress: progress(5, 10) or 7)
    assert job.settled.wait(10)
    assert (job.state, job.result, job.share, job.over) == (State.DONE, 7, 1.0, True)


def test_a_cancelled_job_ends_at_its_next_progress_report(jobs: Jobs) -> None:
    gate = Gate()
    job = jobs.start("wait", "Waiting", gate)
    assert gate.begun.wait(10)
    jobs.cancel(job)
    assert job.settled.wait(10)
    assert (job.state, job.result) == (State.CANCELLED, None)


def test_a_job_that_still_waits_can_be_cancelled(jobs: Jobs) -> None:
    gates = [Gate(), Gate(), Gate()]
    started = [jobs.start("wait", "Waiting", gate) for gate in gates]
    jobs.cancel(started[2])
    gates[0].go.set()
    assert started[2].settled.wait(10)
    assert started[2].state is State.CANCELLED
    assert not gates[2].begun.is_set()
    gates[1].go.set()


def test_the_same_question_twice_is_one_job(jobs: Jobs) -> None:
    gate = Gate()
    one = jobs.start("verify", "One", gate, key=(0, 1))
    assert jobs.start("verify", "Two", gate, key=(0, 1)) is one
    assert jobs.start("usage", "Three", gate, key=(0, 1)) is not one
    gate.go.set()
    assert one.settled.wait(10)
    assert jobs.start("verify", "Four", gate, key=(0, 1)) is one
    assert jobs.start("verify", "Five", gate, key=(0, 1), again=True) is not one
    assert jobs.start("verify", "Six", gate, key=(0, 2)) is not one


def test_an_exception_in_a_job_becomes_its_error_message(jobs: Jobs) -> None:
    def refused(_progress: Progress) -> None:
        raise TargetError("the target is full; free some space")

    def broken(_progress: Progress) -> None:
        raise ZeroDivisionError("\x1b[2J")

    job, other = jobs.start("a", "A", refused), jobs.start("b", "B", broken)
    assert job.settled.wait(10)
    assert other.settled.wait(10)
    assert (job.state, job.error) == (State.FAILED, "the target is full; free some space")
    assert "a bug in mqstore" in other.error
    assert "\x1b" not in other.error


def test_jobs_are_refused_while_the_queue_is_full(jobs: Jobs) -> None:
    gate = Gate()
    for _ in range(module.WAITING):
        jobs.start("wait", "Waiting", gate)
    with pytest.raises(UsageError, match="cancel one"):
        jobs.start("wait", "Waiting", gate)


def test_the_newest_finished_jobs_are_kept(jobs: Jobs) -> None:
    made = []
    for number in range(module.KEPT + 5):
        made.append(jobs.start("quick", str(number), lambda _progress: None))
        assert made[-1].settled.wait(10)
    assert len(jobs.all()) <= module.KEPT + 1
    assert jobs.get(made[-1].id) is made[-1]
    with pytest.raises(NotFoundError):
        jobs.get(made[0].id)


def test_a_long_job_does_not_delay_pages_and_is_cancelled_by_a_form() -> None:
    with visiting(golden("4.9.3/a-clean-small")) as visitor:
        gate = Gate()
        job = visitor.console.jobs.start("verify", "Verifying for long", gate, store=0, key=visitor.console.stores.get(0).key)
        assert gate.begun.wait(10)
        assert visitor.get("/stores/0/topics").status_code == 200
        page = visitor.get("/stores/0/verify")
        assert "Cancel" in words(page)
        assert '<meta http-equiv="refresh"' in page.text
        assert "Verifying for long" in words(visitor.get("/jobs"))
        visitor.submit(f"/jobs/{job.id}/cancel", back="/stores/0/verify")
        assert job.settled.wait(10)
        assert "cancelled" in words(visitor.get(f"/jobs/{job.id}"))


def test_a_console_that_ends_cancels_its_jobs() -> None:
    gate = Gate()
    with visiting(golden("4.9.3/a-clean-small")) as visitor:
        job = visitor.console.jobs.start("wait", "Waiting", gate)
        assert gate.begun.wait(10)
    assert job.state is State.CANCELLED


def test_a_verify_over_queues_of_rabbitmq_can_be_cancelled() -> None:
    with visiting(golden("3.10.8/b-dirty-journal")) as visitor:
        store = visitor.console.stores.get(0).rabbitmq
        told: list[int] = []

        def stop_at_once(done: int, _total: int) -> None:
            told.append(done)
            raise module.CancelledError("enough")

        with pytest.raises(module.CancelledError):
            store.verify(stop_at_once)
        assert len(told) == 1
