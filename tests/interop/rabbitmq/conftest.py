"""Tests against a real node are skipped, with the reason, if none can be started."""

from __future__ import annotations

import pytest
from interop.rabbitmq.node import missing


@pytest.fixture(scope="session", autouse=True)
def a_node_can_be_started() -> None:
    if reason := missing():
        pytest.skip(reason)
