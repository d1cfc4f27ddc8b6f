"""TLS of a server: the mode, and the certificate, key and client CA that it uses.

    disabled     connections that begin with a TLS handshake are closed
    permissive   TLS or plain text, recognized by the first byte of a connection
    enforcing    TLS only

TLS 1.2 and 1.3. With a client CA, a TLS client must present a certificate that it signed.

    >>> tls_mode(None, "server.pem"), tls_mode("permissive", "server.pem"), tls_mode(None, None)
    ('enforcing', 'permissive', 'disabled')

Protocol: docs/formats/rocketmq-remoting.md, section 1.7.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Literal, cast, get_args

from mqstore.errors import UsageError

TlsMode = Literal["disabled", "permissive", "enforcing"]
HANDSHAKE = 0x16  # first byte of a TLS connection; a frame cannot begin with it


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a server."""

    certificate: str
    key: str | None = None
    client_ca: str | None = None

    def load(self) -> ssl.SSLContext:
        """Return a context with what the files hold now. Raises UsageError."""
        return server_context(self.certificate, self.key, self.client_ca)

    def state(self) -> tuple[object, ...]:
        """Return a value that changes when a file does."""
        states: list[object] = []
        for path in (self.certificate, self.key, self.client_ca):
            try:
                stat = None if path is None else os.stat(path)
            except OSError:
                stat = None
            states.append(stat and (stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(states)


def tls_mode(asked: str | None, certificate: str | None, *others: str | None) -> TlsMode:
    """Return the mode: that asked for, or enforcing if there is a certificate. others: key and client CA. Raises UsageError."""
    if asked is None and certificate is None and any(other is not None for other in others):
        raise UsageError("a key or client CA without a certificate gives no TLS; give the certificate with --tls-cert")
    mode = asked or ("disabled" if certificate is None else "enforcing")
    if mode not in get_args(TlsMode):
        raise UsageError(f"there is no TLS mode {mode!r}; the modes are {', '.join(get_args(TlsMode))}")
    if mode != "disabled" and certificate is None:
        raise UsageError(f"--tls {mode} needs a certificate and its key; give them with --tls-cert and --tls-key")
    return cast("TlsMode", mode)


def server_context(certificate: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    """Return the TLS context of a server. The files are PEM; without a key file, the key is in the certificate's. Raises UsageError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _check_file("--tls-cert", certificate)
    if key is not None:
        _check_file("--tls-key", key)
    encrypted = f"the key in {key or certificate} is encrypted, and its password cannot be asked for; decrypt it with `openssl pkey`"

    def no_password() -> str:
        raise UsageError(encrypted)

    try:
        context.load_cert_chain(certificate, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"the key in {key or certificate} does not belong to the certificate in {certificate}; give the key that it was made with"
        else:
            why = (
                f"{certificate} and {key or 'the key in it'} are not a certificate and its key in PEM form ({error.reason or 'unreadable'})"
            )
        raise UsageError(f"{why}; correct --tls-cert and --tls-key" if key is not None else f"{why}; give the key with --tls-key") from None
    except OSError as error:
        raise UsageError(f"{certificate} or its key cannot be read ({error.strerror}); correct --tls-cert and --tls-key") from None
    if client_ca is not None:
        _check_file("--tls-client-ca", client_ca)
        try:
            context.load_verify_locations(client_ca)
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror
            raise UsageError(f"{client_ca} does not contain certificates in PEM form ({reason}); correct --tls-client-ca") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_file(option: str, path: str) -> None:
    if not os.path.isfile(path):
        raise UsageError(f"{path} is not a file; {option} expects a file in PEM form")
