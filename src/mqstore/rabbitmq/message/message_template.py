"""The parts that messages published alike have in common: the stored term without id and body, and the parsed properties.

>>> made = MessageTemplate(b"/", b"", (b"q",), PERSISTENT)
>>> from mqstore.rabbitmq.message.message_term import MessageTerm, write_message
>>> term = MessageTerm(b"0123456789abcdef", b"/", b"", (b"q",), True, (b"hello",), PERSISTENT)
>>> made.term(b"0123456789abcdef", b"hello") == write_message(term), made.persistent
(True, True)
"""

from __future__ import annotations

from mqstore.errors import UsageError
from mqstore.rabbitmq.message.message_term import MessageTerm, PropertiesError, properties_from_bin, write_message

__all__ = ["FRAME", "PERSISTENT", "MessageTemplate"]

PERSISTENT = b"\x10\x00\x02"  # a property block with delivery_mode 2 and nothing else
FRAME = 131064  # bytes of a body in one frame, with the frame_max of the broker
_ID = b"\x6d\x00\x00\x00\x10"


class MessageTemplate:
    """A message without id and body. persistent: delivery mode 2. priority: 0 by default. ttl: ms of `expiration`, or None.

    Raises UsageError for properties that cannot be published.
    """

    def __init__(self, vhost: bytes, exchange: bytes, routing_keys: tuple[bytes, ...], properties: bytes) -> None:
        try:
            parsed = properties_from_bin(properties)
        except PropertiesError as error:
            raise UsageError(f"the message cannot be published: {error}") from None
        self.persistent = parsed.get("delivery_mode") == 2
        self.priority = int(parsed.get("priority") or 0)
        expiration = parsed.get("expiration")
        text = expiration.decode("latin-1") if isinstance(expiration, bytes) else expiration
        if text is not None and not (str(text).isascii() and str(text).isdigit()):
            raise UsageError(f"the message cannot be published: its expiration {text!r} is not a number of milliseconds")
        self.ttl = None if text is None else int(text)
        self.properties = properties
        self._plain = MessageTerm(bytes(16), vhost, exchange, routing_keys, self.persistent, (), properties)
        empty = write_message(self._plain)
        at = len(empty) - empty[::-1].index((_ID + bytes(16))[::-1]) - len(_ID) - 16
        self._tail = empty[at + len(_ID) + 16 :]
        self._empty = empty[: at + len(_ID)]
        self._head = empty[: at - 1] + b"\x6c\x00\x00\x00\x01\x6d"
        self._middle = b"\x6a" + _ID

    def term(self, message_id: bytes, body: bytes) -> bytes:
        """Return the stored term of a message, byte by byte as 3.10.8 on OTP 25 writes it."""
        length = len(body)
        if 0 < length <= FRAME:
            return b"".join((self._head, length.to_bytes(4, "big"), body, self._middle, message_id, self._tail))
        if not length:
            return b"".join((self._empty, message_id, self._tail))
        plain = self._plain
        fragments = tuple(body[start : start + FRAME] for start in range(0, length, FRAME))
        return write_message(
            MessageTerm(message_id, plain.vhost, plain.exchange, plain.routing_keys, plain.persistent, fragments, self.properties)
        )
