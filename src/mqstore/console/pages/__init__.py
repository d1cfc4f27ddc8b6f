"""The pages of the console by subject. `ROUTES` lists all of them."""

from __future__ import annotations

from mqstore.console.page import PageRoute
from mqstore.console.pages import basket, checks, files, find, home, message, messages, overview, queues, topics

_MODULES = (home, overview, find, topics, messages, message, queues, files, checks, basket)
ROUTES: tuple[PageRoute, ...] = tuple(rule for module in _MODULES for rule in module.ROUTES)
