"""The pages of the console by subject. `ROUTES` lists all of them."""

from __future__ import annotations

from mqstore.console.pages import basket, checks, files, find, health, jobs, keys, message, messages, queues, topics
from mqstore.console.pages.route import PageRoute

__all__ = ["ROUTES"]

ROUTES: tuple[PageRoute, ...] = tuple(
    rule for module in (health, find, topics, messages, keys, message, queues, files, checks, basket, jobs) for rule in module.ROUTES
)
