"""Names that were probably meant: for topics, queues and groups that a store does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that suggests the nearest names, if any.

    >>> did_you_mean("orderz", ["orders", "late"]), did_you_mean("ORDERS", ["orders"]), did_you_mean("x", ["orders"])
    ("; did you mean 'orders'?", "; did you mean 'orders'?", '')
    """
    by_form: dict[str, str] = {}
    for each in sorted(known):
        by_form.setdefault(each.casefold(), each)
    near = difflib.get_close_matches(name.casefold(), by_form, 2, 0.75)
    return f"; did you mean {' or '.join(repr(by_form[form]) for form in near)}?" if near else ""
