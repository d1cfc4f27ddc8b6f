"""Addresses: the socket a broker listens on, whom it lets in, and the address it announces to clients."""

from __future__ import annotations

import ipaddress
import logging
import socket
from typing import TYPE_CHECKING

from mqstore.broker.runtime.logs import log
from mqstore.errors import UsageError

if TYPE_CHECKING:
    from mqstore.broker.runtime.settings import Settings
    from mqstore.tls import TlsMode


def bind_listener(listen: str) -> socket.socket:
    """Return a socket bound to `host:port` or `[host]:port`. Raises UsageError."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"cannot listen on {listen!r}: it must be HOST:PORT, such as 127.0.0.1:9876")
    try:
        resolved = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(resolved[0], resolved[1])
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(resolved[4])
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise UsageError(f"cannot listen on {listen}: {error.strerror or error}; choose another address with --listen") from None
    listener.setblocking(False)
    return listener


def advertised_address(host: str, port: int) -> str:
    """Return the address for clients to connect to: the bound one, or this machine's first if the socket is bound to all addresses."""
    if host in ("0.0.0.0", "::"):
        family = socket.AF_INET if host == "0.0.0.0" else socket.AF_INET6
        try:
            host = str(socket.getaddrinfo(socket.gethostname(), port, family, socket.SOCK_STREAM)[0][4][0])
        except OSError:
            host = "127.0.0.1" if family == socket.AF_INET else "::1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def check_exposure(host: str, settings: Settings, mode: TlsMode) -> None:
    """Refuse to listen where other machines could do everything, unless asked for by name. Raises UsageError."""
    if settings.metrics is not None and not settings.insecure_listen:
        listener = bind_listener(settings.metrics)
        with listener:
            bound = listener.getsockname()[0]
        if not is_loopback(bound):
            raise UsageError(
                f"the metrics on {settings.metrics} could be read from other machines, without accounts or TLS; "
                "listen on 127.0.0.1, or allow it with --insecure-listen"
            )
    if is_loopback(host) or settings.acl is not None:
        return
    if mode == "enforcing":
        if settings.tls_client_ca is None:
            log("open-to-all", logging.WARNING, why="TLS hides the traffic but admits every client; give --tls-client-ca or --acl")
        return
    if not settings.insecure_listen:
        also = "TLS is permissive, so clients without it are admitted; " if mode == "permissive" else ""
        raise UsageError(
            f"{host} can be reached from other machines, and any client there could do everything; {also}give accounts with --acl, "
            "or --tls enforcing with --tls-cert, --tls-key and --tls-client-ca, or listen on 127.0.0.1, or allow it with --insecure-listen"
        )
    log("open-to-all", logging.WARNING, why="any client that reaches this address may do everything, as allowed by --insecure-listen")
