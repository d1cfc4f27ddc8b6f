"""How stores, views, queues and reports show themselves: in a line at a prompt, as a table in a notebook; and numbers with their noun."""

from __future__ import annotations

from collections.abc import Iterable

Facts = Iterable[tuple[str, object]]


def count(number: int, noun: str) -> str:
    """Format a number with its noun, with thousands separators.

    >>> count(1, "message"), count(12000, "queue entry"), count(0, "policy")
    ('1 message', '12,000 queue entries', '0 policies')
    """
    plural = noun[:-1] + "ies" if noun.endswith(("try", "cy")) else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


class Shown:
    """Gives an object `__repr__` and `_repr_html_` from its facts. An object whose facts cannot be read is shown by its title."""

    __slots__ = ()

    def _title(self) -> str:
        """Return what the object is, and of what: `RocketMQ store '/backup/store'`."""
        raise NotImplementedError

    def _facts(self) -> Facts:
        """Yield name and value of what is known at little cost."""
        return ()

    def _known_facts(self) -> list[tuple[str, str]]:
        try:
            return [(name, str(value)) for name, value in self._facts()]
        except Exception:  # the files of a store may have been removed meanwhile, and a debugger shows objects at any time
            return []

    def __dir__(self) -> list[str]:
        """Return the public names, which is what completion offers."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._known_facts())
        return f"<{self._title()}{': ' if facts else ''}{facts}>"

    def _repr_html_(self) -> str:
        import html  # only notebooks need it

        rows = "".join(
            f'<tr><th style="text-align:left">{html.escape(name)}</th><td style="text-align:left">{html.escape(value)}</td></tr>'
            for name, value in self._known_facts()
        )
        return f'<table><caption style="text-align:left">{html.escape(self._title())}</caption>{rows}</table>'
