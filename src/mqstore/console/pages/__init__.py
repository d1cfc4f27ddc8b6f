"""The pages of the console by subject. `ROUTES` lists all of them."""

from __future__ import annotations

from mqstore.console.pages import basket, checks, files, find, health, jobs, keys, message, messages, overview, queues, topics, zone
from mqstore.console.pages.route import PageRoute

__all__ = ["ROUTES"]

_MODULES = (health, overview, find, topics, messages, keys, message, queues, files, checks, basket, jobs, zone)
ROUTES: tuple[PageRoute, ...] = tuple(rule for module in _MODULES for rule in module.ROUTES)
