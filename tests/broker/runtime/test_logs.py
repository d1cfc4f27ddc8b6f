"""The log of a broker, a line of JSON for each event."""

from __future__ import annotations

import json
import logging

from mqstore.broker.runtime.logs import JsonLogFormatter


def test_an_event_is_a_line_with_its_time_and_facts() -> None:
    record = logging.LogRecord("mqstore", logging.WARNING, "", 0, "access-refused", (), None)
    record.created = 1640995200.25
    record.facts = {"peer": "10.0.0.1:5", "why": "no \u00e9"}
    line = JsonLogFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2022-01-01T00:00:00.250Z",
        "level": "WARNING",
        "event": "access-refused",
        "peer": "10.0.0.1:5",
        "why": "no \u00e9",
    }
