"""The basket: messages put aside, downloaded as a file, or replayed into a place that the command line allows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from starlette.responses import Response, StreamingResponse

from mqstore.console import basket_export
from mqstore.console.basket import LIMIT, Basket, InLog, Place, place_from
from mqstore.console.jobs import Progress
from mqstore.console.page import Asked, address
from mqstore.console.pages.rule import Rule
from mqstore.console.replay import Replayed, Target, families, replay, targets_of
from mqstore.errors import NotFoundError, UsageError

__all__ = ["RULES"]

SHOWN = 200


def _basket(asked: Asked) -> Basket:
    if asked.session is None:
        raise UsageError("the basket belongs to a session, and this request has none; let the browser keep the cookie")
    return asked.session.basket


def _places(asked: Asked, *, every: bool = False) -> list[Place]:
    """The messages that a form names: the chosen ones, or all that its page showed."""
    given = asked.form.get("shown" if every else "place", [])
    places = [place_from(text) for text in given[: LIMIT + 1]]
    for place in places:
        if place.store >= len(asked.console.shelf):
            raise NotFoundError(f"there is no store {place.store}; choose messages on a page that lists them")
    return places


def basket(asked: Asked) -> Response:
    places = _basket(asked).places
    start = asked.number("from") or 0
    shown = [(place, _link(place), asked.console.shelf.names[place.store], _told(place)) for place in places[start : start + SHOWN]]
    return asked.show(
        "basket.html",
        section="basket",
        shown=shown,
        start=start,
        size=SHOWN,
        total=len(places),
        families=families(places),
        targets=_targets(asked),
        limit=LIMIT,
    )


def _link(place: Place) -> str:
    path = f"/stores/{place.store}/message"
    if isinstance(place, InLog):
        return address(path, offset=place.physical_offset)
    return address(path, vhost=place.vhost, queue=place.queue, level=place.level, seq=place.seq_id)


def _told(place: Place) -> str:
    if isinstance(place, InLog):
        return f"physical offset {place.physical_offset:,}"
    level = "" if place.level is None else f", priority {place.level}"
    return f"queue {place.queue} of vhost {place.vhost}{level}, sequence id {place.seq_id:,}"


def add(asked: Asked) -> Response:
    places = _places(asked, every=bool(asked.text("all")))
    if not places:
        raise UsageError("no message is chosen; tick some, or put all that are shown into the basket")
    _basket(asked).add(places)
    return asked.back("/basket")


def remove(asked: Asked) -> Response:
    _basket(asked).remove(_places(asked))
    return asked.go("/basket")


def clear(asked: Asked) -> Response:
    _basket(asked).clear()
    return asked.go("/basket")


def export(asked: Asked) -> Response:
    """A download; what has left its store since it was chosen is left out."""
    places, family, form = _basket(asked).places, asked.text("family"), asked.text("format", "jsonl")
    if family not in families(places):
        raise UsageError("the basket has no message of that family; put some in first")
    shelf = asked.console.shelf
    headers = {"Content-Disposition": f'attachment; filename="{family}-messages.{form}"'}
    if form == "jsonl":
        return StreamingResponse(basket_export.json_lines(shelf, places, family), media_type="application/x-ndjson", headers=headers)
    if form != "parquet":
        raise UsageError("messages are exported as jsonl or parquet")
    return Response(basket_export.parquet(shelf, places, family), media_type="application/vnd.apache.parquet", headers=headers)


# replay


def _targets(asked: Asked) -> tuple[Target, ...]:
    settings = asked.console.settings
    return targets_of(settings.targets, settings.places) if settings.allow_writes else ()


def _fingerprint(places: Sequence[Place]) -> str:
    return hashlib.sha256("\n".join(map(str, places)).encode("utf-8", "surrogatepass")).hexdigest()


def _chosen(asked: Asked) -> Target:
    if not asked.console.settings.allow_writes:
        raise UsageError("this console does not write: start it with --allow-writes and --replay-to TARGET to replay messages")
    number = asked.number("target")
    targets = _targets(asked)
    if number is None or number >= len(targets):
        raise UsageError("choose one of the targets that --replay-to named")
    return targets[number]


def confirm(asked: Asked) -> Response:
    """What would be written, before it is."""
    target, places = _chosen(asked), _basket(asked).places
    if not places:
        raise UsageError("the basket is empty; put messages in first")
    return asked.show(
        "confirm.html",
        section="basket",
        target=target,
        number=asked.number("target"),
        total=len(places),
        families=families(places),
        fingerprint=_fingerprint(places),
        shown=[(asked.console.shelf.names[place.store], _told(place)) for place in places[:20]],
    )


def run(asked: Asked) -> Response:
    target, places = _chosen(asked), _basket(asked).places
    if asked.text("sure") != "yes":
        raise UsageError("nothing was written: tick that you are sure on the page before")
    if not places or asked.text("fingerprint") != _fingerprint(places):
        raise UsageError("nothing was written: the basket has changed since it was shown; look at it and confirm again")
    shelf = asked.console.shelf

    def work(progress: Progress) -> Replayed:
        return replay(shelf, places, target, progress)

    job = asked.console.jobs.start("replay", f"Replaying {len(places):,} messages to {target.shown}", work, unit="messages", writes=True)
    _basket(asked).clear()
    asked.waited(job)
    return asked.go(f"/jobs/{job.id}")


RULES = (
    Rule("/basket", basket),
    Rule("/basket/add", add, posts=True),
    Rule("/basket/remove", remove, posts=True),
    Rule("/basket/clear", clear, posts=True),
    Rule("/basket/export", export),
    Rule("/basket/replay", confirm, posts=True),
    Rule("/basket/replay/run", run, posts=True),
)
