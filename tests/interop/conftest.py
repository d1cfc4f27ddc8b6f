"""The scenario scripts beside the oracle make golden stores; they hold no tests."""

collect_ignore_glob = ["rocketmq/*"]
