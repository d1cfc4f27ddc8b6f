"""The scenario scripts beside the oracle make golden stores; they contain no tests."""

from __future__ import annotations

collect_ignore_glob = ["rocketmq/*", "rocketmq-clients/*"]
