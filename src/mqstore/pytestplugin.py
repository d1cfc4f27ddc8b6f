"""The pytest plug-in: `rocketmq`, a RocketMQ in the process of the tests.

    def test_an_order_is_paid(rocketmq):
        pay("o-17", namesrv=rocketmq.address)
        assert rocketmq.consume("payments")[0].keys == "o-17"

The broker starts in milliseconds over an empty store in a temporary directory of pytest's. `rocketmq.address` is the name server for
clients in any language; `produce`, `consume` and `create_topic` speak to the broker; `rocketmq.store` is the store itself. Each test has
a broker of its own; `rocketmq_scope = session` (or module, package, class) in the pytest settings shares one.

What the fixture needs is imported when a test first asks for it: runs without it pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

if TYPE_CHECKING:
    from mqstore.testing.running_broker import RunningBroker

__all__ = ["pytest_addoption", "rocketmq"]

_SCOPES = ("function", "class", "module", "package", "session")
Scope = Literal["function", "class", "module", "package", "session"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings of the plug-in."""
    parser.addini("rocketmq_scope", "how long a broker of the fixture rocketmq lives: one of " + ", ".join(_SCOPES), default="function")
    parser.addini("rocketmq_version", "which broker clients of the fixture rocketmq see: 4.9.3 or 5.3.3", default="4.9.3")


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    wanted = str(config.getini("rocketmq_scope"))
    if wanted not in _SCOPES:
        raise pytest.UsageError(f"rocketmq_scope is {wanted!r}; it must be one of {', '.join(_SCOPES)}")
    return cast("Scope", wanted)


@pytest.fixture(scope=_scope)
def rocketmq(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A RocketMQ name server and broker over an empty store: address, store, produce, consume."""
    from mqstore.testing.running_broker import RunningBroker

    options: dict[str, Any] = {"version": str(request.config.getini("rocketmq_version"))}
    with RunningBroker(tmp_path_factory.mktemp("rocketmq") / "store", **options) as broker:
        yield broker
