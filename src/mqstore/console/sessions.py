"""Sessions of visitors, each with a basket.

Sessions are created only for visitors who may read, so that others cannot evict them. A session's form token is a keyed digest of its
id: a form without it was not made by this console.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from mqstore.console.basket import Basket

KEPT = 200


@dataclass(slots=True, eq=False)
class Session:
    """A visitor's session. id: the cookie's value; csrf: the token in every form; zone: of the times that pages show."""

    id: str
    csrf: str
    basket: Basket = field(default_factory=Basket)
    zone: str = "UTC"
    new: bool = True


class Sessions:
    """The sessions of a console. If there are too many, the least recently used is dropped, those with an empty basket first."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def may_enter(self, token: str) -> bool:
        """Return whether a token is the console's, compared in constant time."""
        return self._token is None or hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())

    def find(self, session_id: str | None) -> Session | None:
        """Return the session of a cookie, or None."""
        with self._lock:
            found = self._sessions.get(session_id or "")
            if found is not None:
                self._sessions.move_to_end(found.id)
                found.new = False
            return found

    def make(self) -> Session:
        """Create a session for a visitor who may read."""
        session_id = secrets.token_urlsafe(24)
        session = Session(session_id, hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest())
        with self._lock:
            self._sessions[session_id] = session
            if len(self._sessions) > KEPT:
                # a visitor without cookies creates one with each request; such sessions hold nothing
                idle = next((each for each in self._sessions.values() if not len(each.basket)), None)
                del self._sessions[idle.id if idle is not None and idle is not session else next(iter(self._sessions))]
        return session

    @property
    def open(self) -> bool:
        """Whether no token is required."""
        return self._token is None
