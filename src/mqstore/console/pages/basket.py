"""The basket page: export its messages as a file, or replay them into a target that the command line allows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from starlette.responses import Response, StreamingResponse

from mqstore.console.basket import LIMIT, Basket, InLog, Place, json_lines, parquet, place_from
from mqstore.console.jobs import Progress
from mqstore.console.page import PageRequest, PageRoute, address
from mqstore.console.replay import ReplayResult, ReplayTarget, count_by_family, replay, targets_of
from mqstore.errors import NotFoundError, UsageError
from mqstore.table.formatting import count

SHOWN = 200


def _basket(request: PageRequest) -> Basket:
    if request.session is None:
        raise UsageError("the basket belongs to a session, and this request has none; allow the browser to keep the cookie")
    return request.session.basket


def _places(request: PageRequest, *, every: bool = False) -> list[Place]:
    """Return the messages that a form names: the selected ones, or all shown on its page."""
    given = request.form.get("shown" if every else "place", [])
    places = [place_from(text) for text in given[: LIMIT + 1]]
    for place in places:
        if place.store >= len(request.console.stores):
            raise NotFoundError(f"there is no store {place.store}; select messages on a page that lists them")
    return places


def basket(request: PageRequest) -> Response:
    places = _basket(request).places
    start = request.number("from") or 0
    shown = [
        (place, _link(place), request.console.stores.names[place.store], _description(place)) for place in places[start : start + SHOWN]
    ]
    return request.show(
        "basket.html",
        section="basket",
        shown=shown,
        start=start,
        size=SHOWN,
        total=len(places),
        families=count_by_family(places),
        targets=_targets(request),
        limit=LIMIT,
    )


def _link(place: Place) -> str:
    path = f"/stores/{place.store}/message"
    if isinstance(place, InLog):
        return address(path, offset=place.physical_offset)
    return address(path, vhost=place.vhost, queue=place.queue, level=place.level, seq=place.seq_id)


def _description(place: Place) -> str:
    if isinstance(place, InLog):
        return f"physical offset {place.physical_offset:,}"
    level = "" if place.level is None else f", priority {place.level}"
    return f"queue {place.queue} of vhost {place.vhost}{level}, sequence id {place.seq_id:,}"


def add(request: PageRequest) -> Response:
    places = _places(request, every=bool(request.text("all")))
    if not places:
        raise UsageError("no message is selected; select some, or add all that are shown")
    _basket(request).add(places)
    return request.back("/basket")


def remove(request: PageRequest) -> Response:
    _basket(request).remove(_places(request))
    return request.go("/basket")


def clear(request: PageRequest) -> Response:
    _basket(request).clear()
    return request.go("/basket")


def export(request: PageRequest) -> Response:
    """Return the basket as a download. Messages that are no longer in their store are left out."""
    places, family, form = _basket(request).places, request.text("family"), request.text("format", "jsonl")
    if family not in count_by_family(places):
        raise UsageError("the basket has no message of that family; add some first")
    stores = request.console.stores
    headers = {"Content-Disposition": f'attachment; filename="{family}-messages.{form}"'}
    if form == "jsonl":
        return StreamingResponse(json_lines(stores, places, family), media_type="application/x-ndjson", headers=headers)
    if form != "parquet":
        raise UsageError("messages are exported as jsonl or parquet")
    return Response(parquet(stores, places, family), media_type="application/vnd.apache.parquet", headers=headers)


# replay


def _targets(request: PageRequest) -> tuple[ReplayTarget, ...]:
    settings = request.console.settings
    return targets_of(settings.targets, settings.places) if settings.allow_writes else ()


def _fingerprint(places: Sequence[Place]) -> str:
    return hashlib.sha256("\n".join(map(str, places)).encode("utf-8", "surrogatepass")).hexdigest()


def _chosen_target(request: PageRequest) -> ReplayTarget:
    if not request.console.settings.allow_writes:
        raise UsageError("this console is read-only: start it with --allow-writes and --replay-to TARGET to replay messages")
    number = request.number("target")
    targets = _targets(request)
    if number is None or number >= len(targets):
        raise UsageError("choose one of the targets given with --replay-to")
    return targets[number]


def confirm(request: PageRequest) -> Response:
    """Show what would be written, before it is written."""
    target, places = _chosen_target(request), _basket(request).places
    if not places:
        raise UsageError("the basket is empty; add messages first")
    return request.show(
        "confirm.html",
        section="basket",
        target=target,
        number=request.number("target"),
        total=len(places),
        families=count_by_family(places),
        fingerprint=_fingerprint(places),
        shown=[(request.console.stores.names[place.store], _description(place)) for place in places[:20]],
    )


def run(request: PageRequest) -> Response:
    target, places = _chosen_target(request), _basket(request).places
    if request.text("sure") != "yes":
        raise UsageError("nothing was written: confirm on the previous page first")
    if not places or request.text("fingerprint") != _fingerprint(places):
        raise UsageError("nothing was written: the basket has changed since it was shown; check it and confirm again")
    stores = request.console.stores

    def work(progress: Progress) -> ReplayResult:
        return replay(stores, places, target, progress)

    job = request.console.jobs.start(
        "replay", f"Replaying {count(len(places), 'message')} to {target.shown}", work, unit="messages", writes=True
    )
    _basket(request).clear()
    request.waited(job)
    return request.go(f"/jobs/{job.id}")


ROUTES = (
    PageRoute("/basket", basket),
    PageRoute("/basket/add", add, posts=True),
    PageRoute("/basket/remove", remove, posts=True),
    PageRoute("/basket/clear", clear, posts=True),
    PageRoute("/basket/export", export),
    PageRoute("/basket/replay", confirm, posts=True),
    PageRoute("/basket/replay/run", run, posts=True),
)
