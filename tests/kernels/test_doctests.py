"""The worked examples in the kernels' docstrings, on whatever runs here: machine code or plain Python."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

from mqstore import kernels


@pytest.mark.parametrize("name", sorted(module.name for module in pkgutil.iter_modules(kernels.__path__)))
def test_the_examples_hold(name: str) -> None:
    assert doctest.testmod(import_module(f"mqstore.kernels.{name}"), optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
