"""Peak memory of `verify` and `messages` on a store of a few GB. RSS includes pages of mapped files; anonymous memory does not."""

from __future__ import annotations

from benchkit import Bench, Row, Target, child, costs, mqstore


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    commands = {
        "verify": mqstore("verify", store, "-o", "json", "-q"),
        "messages": mqstore("messages", store, "-o", "csv", "--body", "none", "-q"),
        "messages with bodies": mqstore("messages", store, "-o", "jsonl", "--body", "sha256", "--to-offset", 1 << 30, "-q"),
    }
    for name, command in commands.items():
        what = f"memory of {name}"
        if not bench.wants(what):
            continue
        runs = [child(*command) for _ in range(bench.rounds)]
        assert {run.status for run in runs} == {0}, runs[-1].stdout[-2000:]
        peaks = [run.rss / 1e6 for run in runs]
        figures = {"peak RSS MB": peaks, "peak anonymous MB": [run.anonymous / 1e6 for run in runs], **costs(runs)}
        bench.emit(Row(what, [Target("<=", 400, "MB RSS", peaks)], figures))


if __name__ == "__main__":
    main()
