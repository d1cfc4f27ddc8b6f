"""Log lines: an event with its facts, one JSON object per line.

    >>> import logging
    >>> record = logging.makeLogRecord({"levelname": "INFO", "created": 0.0, "msg": "connection-closed", "facts": {"peer": "127.0.0.1:5"}})
    >>> JsonLogFormatter().format(record)
    '{"time":"1970-01-01T00:00:00.000Z","level":"INFO","event":"connection-closed","peer":"127.0.0.1:5"}'

Events are short constant names; whatever varies is a fact. `log` passes events to the logger `mqstore.broker`; the program that runs the
broker adds a handler.
"""

from __future__ import annotations

import datetime
import json
import logging

LOGGER = logging.getLogger("mqstore.broker")


def log(event: str, level: int = logging.INFO, *, error: BaseException | None = None, **facts: object) -> None:
    """Log an event."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, event, exc_info=error, extra={"facts": facts})


class JsonLogFormatter(logging.Formatter):
    """Formats an event as a JSON line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z",
            "level": record.levelname,
            "event": record.getMessage(),
        }
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)
