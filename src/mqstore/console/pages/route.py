"""Which page answers at which address."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore.console.page import PageFunction

__all__ = ["PageRoute"]


@dataclass(frozen=True, slots=True)
class PageRoute:
    """posts: it changes something, and is asked by a form alone. csrf: the form must bring the session's token."""

    path: str
    page: PageFunction
    posts: bool = False
    csrf: bool = True
