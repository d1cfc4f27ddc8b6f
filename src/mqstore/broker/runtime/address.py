"""Addresses: the socket a broker listens on, and the address it announces to clients."""

from __future__ import annotations

import socket

from mqstore.errors import UsageError

__all__ = ["advertised_address", "bind_listener"]


def bind_listener(listen: str) -> socket.socket:
    """Return a socket bound to `host:port` or `[host]:port`. Raises UsageError."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"cannot listen on {listen!r}: it must be HOST:PORT, such as 127.0.0.1:9876")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(found[0], found[1])
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[4])
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
