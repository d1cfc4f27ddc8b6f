"""The pages of the jobs: progress and cancellation."""

from __future__ import annotations

from starlette.responses import Response

from mqstore.console.jobs import Job, State
from mqstore.console.page import PageRequest
from mqstore.console.pages.route import PageRoute

_UNLISTED = frozenset({"look", "draw"})  # of every store, as soon as its page is opened


def _result_address(job: Job) -> str | None:
    """Return the address of the page that shows a job's result."""
    if job.store is None or job.state is not State.DONE:
        return None
    base = f"/stores/{job.store}"
    return {"verify": f"{base}/verify", "usage": f"{base}/usage", "look": base, "draw": base, "diagnose": base}.get(job.kind)


def jobs(request: PageRequest) -> Response:
    found = [(job, _result_address(job)) for job in request.console.jobs.all() if job.kind not in _UNLISTED or not job.over]
    return request.show("jobs.html", section="jobs", found=found, refresh=any(not job.over for job, _ in found))


def one(request: PageRequest) -> Response:
    job = request.console.jobs.get(str(request.http.path_params["job"]))
    return request.show("job.html", section="jobs", job=job, target=_result_address(job), refresh=not job.over)


def cancel(request: PageRequest) -> Response:
    job = request.console.jobs.get(str(request.http.path_params["job"]))
    request.console.jobs.cancel(job)
    job.settled.wait(1.0)
    return request.back(f"/jobs/{job.id}")


ROUTES = (
    PageRoute("/jobs", jobs),
    PageRoute("/jobs/{job}", one),
    PageRoute("/jobs/{job}/cancel", cancel, posts=True),
)
