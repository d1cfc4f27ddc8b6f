"""The stores that `mqstore.open` returns, one class a family: readers with the verbs of `mqstore.store`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore.places import find_store

if TYPE_CHECKING:
    from mqstore.files.location import Location
    from mqstore.store import StorePlace
    from mqstore.stores.rabbitmq import RabbitMQ
    from mqstore.stores.rocketmq import RocketMQ


def open_store(
    path: Location, *, config: Path | None = None, now: int | None = None, names: Iterable[tuple[str, str]] = (), careful: bool = False
) -> RocketMQ | RabbitMQ:
    """Open the store at a path, of either family; errors as for `mqstore.open`. config: RocketMQ; the others: as for `RabbitMQStore`."""
    return open_at(find_store(path), config=config, now=now, names=names, careful=careful)


def open_at(
    place: StorePlace, *, config: Path | None = None, now: int | None = None, names: Iterable[tuple[str, str]] = (), careful: bool = False
) -> RocketMQ | RabbitMQ:
    """Open the store at a place that was recognized; arguments as for `open_store`."""
    if place.family == "rocketmq":
        from mqstore.stores.rocketmq import RocketMQ

        return RocketMQ.at(place, config=config)
    from mqstore.stores.rabbitmq import RabbitMQ

    return RabbitMQ.at(place, now=now, names=names, careful=careful)


def open_rocketmq(path: Location, *, config: Path | None = None) -> RocketMQ:
    """Open a RocketMQ store. Raises UnsupportedError for another, and what `mqstore.open` raises."""
    from mqstore.stores.rocketmq import RocketMQ

    return RocketMQ.at(find_store(path, "rocketmq"), config=config)


def open_rabbitmq(path: Location, *, now: int | None = None, names: Iterable[tuple[str, str]] = (), careful: bool = False) -> RabbitMQ:
    """Open a RabbitMQ store; arguments as for `RabbitMQStore`. Raises UsageError for another, and what `mqstore.open` raises."""
    from mqstore.stores.rabbitmq import RabbitMQ

    return RabbitMQ.at(find_store(path, "rabbitmq"), now=now, names=names, careful=careful)
