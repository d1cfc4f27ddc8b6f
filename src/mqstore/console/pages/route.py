"""Routes of the console's pages."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore.console.page import PageFunction


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page and its address. posts: it changes something and is only reached by a form. csrf: the form must carry the session's token."""

    path: str
    page: PageFunction
    posts: bool = False
    csrf: bool = True
