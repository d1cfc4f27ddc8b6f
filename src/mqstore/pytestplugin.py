"""The pytest plug-in: the fixture `rocketmq`, a RocketMQ broker in the process of the tests.

    def test_an_order_is_paid(rocketmq):
        pay("o-17", namesrv=rocketmq.address)
        assert rocketmq.consume("payments")[0].keys == "o-17"

The broker starts in milliseconds over an empty store in a temporary directory. `rocketmq.address` is the name server for clients in any
language; `produce`, `consume` and `create_topic` send requests to the broker; `rocketmq.store` is the store itself. Each test gets a new
broker; `rocketmq_scope = session` (or module, package, class) in the pytest settings shares one.

The broker is imported when a test first uses the fixture, so other runs pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

if TYPE_CHECKING:
    from mqstore.testing.running_broker import RunningBroker

_SCOPES = ("function", "class", "module", "package", "session")
Scope = Literal["function", "class", "module", "package", "session"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings of the plug-in."""
    parser.addini("rocketmq_scope", "scope of the broker of the fixture rocketmq: one of " + ", ".join(_SCOPES), default="function")
    parser.addini("rocketmq_version", "version that the broker of the fixture rocketmq shows to clients: 4.9.3 or 5.3.3", default="4.9.3")


def pytest_configure(config: pytest.Config) -> None:
    """Let the package be imported as it is: pytest would rewrite the `assert`s of every module of the package that a plug-in comes with.

    That parses each module once more, and CPython 3.11 can fail at it where threads import at one time (its issue 106905).
    """
    getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("mqstore")


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    scope = str(config.getini("rocketmq_scope"))
    if scope not in _SCOPES:
        raise pytest.UsageError(f"rocketmq_scope is {scope!r}; it must be one of {', '.join(_SCOPES)}")
    return cast("Scope", scope)


@pytest.fixture(scope=_scope)
def rocketmq(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A RocketMQ name server and broker over an empty store: address, store, produce, consume."""
    from mqstore.testing.running_broker import RunningBroker

    options: dict[str, Any] = {"version": str(request.config.getini("rocketmq_version"))}
    with RunningBroker(tmp_path_factory.mktemp("rocketmq") / "store", **options) as broker:
        yield broker
