"""Which page answers at which address."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore.console.page import Page

__all__ = ["Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """posts: it changes something, and is asked by a form alone. csrf: the form must bring the session's token."""

    path: str
    page: Page
    posts: bool = False
    csrf: bool = True
