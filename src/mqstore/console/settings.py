"""Settings of a console."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from mqstore.errors import UsageError
from mqstore.files.location import Location, as_location
from mqstore.tls import server_context, tls_mode


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a console.

    stores: paths or URLs. token: what visitors must give; None: anyone who reaches the address may read. targets: where messages may be
    replayed to: paths of RocketMQ stores or `amqp://` addresses, only with allow_writes. now: microseconds
    since 1970 at which messages count as expired; None: the time a store is opened. tls_cert, tls_key, tls_client_ca: PEM files; with a
    certificate the console uses TLS, with a client CA browsers need a certificate. Raises UsageError for unsafe settings.
    """

    stores: tuple[str | Location, ...]
    host: str = "127.0.0.1"
    port: int = 8082
    token: str | None = None
    allow_writes: bool = False
    targets: tuple[str, ...] = ()
    now: int | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None

    def __post_init__(self) -> None:
        if not self.stores:
            raise UsageError("the console needs a store to show; give one path or more")
        if self.token is not None and not self.token:
            raise UsageError("the token is empty; give one that cannot be guessed, or omit --token to have one generated")
        if not self.is_loopback and self.token is None:
            raise UsageError(
                f"{self.host} can be reached from other machines, so a token is required; give --token, or listen on 127.0.0.1"
            )
        if self.targets and not self.allow_writes:
            raise UsageError("--replay-to writes, so it needs --allow-writes")
        if tls_mode(None, self.tls_cert, self.tls_key, self.tls_client_ca) != "disabled" and self.tls_cert is not None:
            server_context(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def places(self) -> tuple[Location, ...]:
        """The stores as locations."""
        return tuple(as_location(store) if isinstance(store, str) else store for store in self.stores)


def address_of(listen: str) -> tuple[str, int]:
    """Parse `host:port`, `[ip]:port`, `:port` or a port into (host, port). Raises UsageError.

    >>> address_of("127.0.0.1:8082"), address_of("[::1]:0"), address_of("9000")
    (('127.0.0.1', 8082), ('::1', 0), ('127.0.0.1', 9000))
    """
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{listen!r} is not an address to listen on; give HOST:PORT, such as 127.0.0.1:8082")
    return host, int(port)
