"""The jobs: how far they are, and how to end them."""

from __future__ import annotations

from starlette.responses import Response

from mqstore.console.jobs import Job, State
from mqstore.console.page import Asked
from mqstore.console.pages.rule import Rule

__all__ = ["RULES"]


def _target(job: Job) -> str | None:
    """Where the outcome of a job is shown."""
    if job.store is None or job.state is not State.DONE:
        return None
    return {"verify": f"/stores/{job.store}/verify", "usage": f"/stores/{job.store}/usage", "look": f"/stores/{job.store}"}.get(job.kind)


def jobs(asked: Asked) -> Response:
    found = [(job, _target(job)) for job in asked.console.jobs.all() if job.kind != "look" or not job.over]
    return asked.show("jobs.html", section="jobs", found=found, refresh=any(not job.over for job, _ in found))


def one(asked: Asked) -> Response:
    job = asked.console.jobs.get(str(asked.request.path_params["job"]))
    return asked.show("job.html", section="jobs", job=job, target=_target(job), refresh=not job.over)


def cancel(asked: Asked) -> Response:
    job = asked.console.jobs.get(str(asked.request.path_params["job"]))
    asked.console.jobs.cancel(job)
    job.settled.wait(1.0)
    return asked.back(f"/jobs/{job.id}")


RULES = (
    Rule("/jobs", jobs),
    Rule("/jobs/{job}", one),
    Rule("/jobs/{job}/cancel", cancel, posts=True),
)
