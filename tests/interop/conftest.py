"""How many random scripts are run against the real store. The scenario scripts beside the oracle make golden stores; they hold no tests."""

from __future__ import annotations

import pytest

collect_ignore_glob = ["rocketmq/*"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scripts", type=int, default=100, help="random scripts that each version of the real store is compared on")
    parser.addoption("--first-script", type=int, default=0, help="the number of the first of them")
