"""The choice of the time zone in which pages show times."""

from __future__ import annotations

from starlette.responses import Response

from mqstore.console import zones
from mqstore.console.page import PageRequest
from mqstore.console.pages.route import PageRoute
from mqstore.errors import UsageError


def zone(request: PageRequest) -> Response:
    return request.show("zone.html", section="zone", names=zones.names(), back=request.text("back"))


def choose(request: PageRequest) -> Response:
    if request.session is None:
        raise UsageError("the time zone belongs to a session, and this request has none; allow the browser to keep the cookie")
    request.session.zone = zones.zone_named(request.text("zone", "UTC", longest=100))
    return request.back("/")


ROUTES = (
    PageRoute("/zone", zone),
    PageRoute("/zone", choose, posts=True),
)
