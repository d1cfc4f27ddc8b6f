"""Signatures: proof that a request was made by a client that knows the secret key of an account.

    content    the values of all extFields except Signature and _UNIQUE_KEY_QUERY, in the order of their names, then the body
    Signature  base64 of the HMAC-SHA1 of the content, under the secret key; names and values are UTF-8

    >>> from mqstore.broker.protocol.frames import Frame
    >>> sign(Frame(105, ext={"topic": "orders", "AccessKey": "publisher"}), "12345678")
    'uWuG7X8Ja0ZOlAkwT1LnwXFSZh0='

Names are sorted by UTF-16 code units, as Java sorts strings. The content has no time or counter: a recorded request can be
sent again, so use TLS where the network is not trusted.

Format: docs/formats/rocketmq-remoting.md, section 10. Source: Apache RocketMQ 4.9.3, AclUtils, AclSigner, PlainAccessValidator.
"""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqstore.broker.protocol.frames import Frame

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
UNSIGNED = frozenset({SIGNATURE, "_UNIQUE_KEY_QUERY"})


def sign(request: Frame, secret_key: str) -> str:
    """Return the signature of a request."""
    ext = request.ext or {}
    names = [name for name in ext if name not in UNSIGNED]
    names.sort(key=None if all(map(str.isascii, names)) else _utf16)
    mac = hmac.new(secret_key.encode("utf-8", "replace"), "".join([ext[name] for name in names]).encode("utf-8", "replace"), "sha1")
    mac.update(request.body)
    return base64.b64encode(mac.digest()).decode("ascii")


def is_signed_by(request: Frame, secret_key: str) -> bool:
    """Whether a request has the right signature. Takes the same time for every wrong one."""
    given = (request.ext or {}).get(SIGNATURE, "")
    return hmac.compare_digest(sign(request, secret_key).encode(), given.encode("utf-8", "replace"))


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
