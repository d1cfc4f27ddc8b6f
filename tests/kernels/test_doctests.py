"""The worked examples in the kernels' docstrings, on the compiled kernels."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

from mqstore import kernels

NAMES = sorted(module.name for module in pkgutil.walk_packages(kernels.__path__, "mqstore.kernels.") if not module.ispkg)


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_hold(name: str) -> None:
    assert doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
