"""Public names of a package, each imported when it is first used: so that `import mqstore` stays fast, and needs no extra.

__getattr__, __dir__ = on_first_use(__name__, {"mqstore.broker.server": ["Broker"]})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def on_first_use(package: str, names: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package. names: the public ones, by the module that defines them."""
    modules = {name: module for module, own in names.items() for name in own}

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return getattr_, lambda: sorted(modules)
