"""Visitors: who may read, and what each has put into the basket.

A session is made for a visitor who may read, so that nobody else can push others out. Its form token is a keyed digest of its id: a form
that does not bring it was not made by this console.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from mqstore.console.basket import Basket

__all__ = ["Session", "Sessions"]

KEPT = 200


@dataclass(slots=True, eq=False)
class Session:
    """One visitor. id: in the cookie; csrf: in every form."""

    id: str
    csrf: str
    basket: Basket = field(default_factory=Basket)
    new: bool = True


class Sessions:
    """All sessions of one console; of too many the longest unused goes, one with an empty basket first."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def may_enter(self, token: str) -> bool:
        """Whether a token is the one that was given, compared in constant time."""
        return self._token is None or hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())

    def find(self, session_id: str | None) -> Session | None:
        """The session of a cookie."""
        with self._lock:
            found = self._sessions.get(session_id or "")
            if found is not None:
                self._sessions.move_to_end(found.id)
                found.new = False
            return found

    def make(self) -> Session:
        """A session for a visitor who may read."""
        session_id = secrets.token_urlsafe(24)
        session = Session(session_id, hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest())
        with self._lock:
            self._sessions[session_id] = session
            if len(self._sessions) > KEPT:
                # a visitor without cookies makes one with each request; such a session keeps nothing
                idle = next((each for each in self._sessions.values() if not len(each.basket)), None)
                del self._sessions[idle.id if idle is not None and idle is not session else next(iter(self._sessions))]
        return session

    @property
    def open(self) -> bool:
        """Whether no token is asked for."""
        return self._token is None
