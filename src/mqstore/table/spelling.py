"""Names that were probably meant: for topics, queues, vhosts and groups that a store does not have."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

SHOWN = 20


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


def no_vhost(name: str, known: Collection[str]) -> str:
    """Return the sentence for a vhost that a store does not have.

    >>> no_vhost("prd", ["prod", "test"]), no_vhost("x", ["prod", "test"])
    ("the store has no vhost 'prd'; did you mean 'prod'?", "the store has no vhost 'x'; it has 'prod' and 'test'")
    """
    there = [repr(each) for each in sorted(known)]
    more = len(there) - SHOWN
    shown = [*there[:SHOWN], *([f"{more:,} more"] if more > 0 else [])]
    listed = " and ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else "".join(shown) or "none"
    return f"the store has no vhost {name!r}{did_you_mean(name, known) or f'; it has {listed}'}"
