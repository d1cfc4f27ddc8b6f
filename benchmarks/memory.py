"""Peak memory of `verify` and `messages` on a store of a few GB. RSS includes pages of mapped files; anonymous memory does not."""

from __future__ import annotations

from benchkit import Bench, Row, child, mqstore


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    commands = {
        "verify": mqstore("verify", store, "-o", "json", "-q"),
        "messages": mqstore("messages", store, "-o", "csv", "--body", "none", "-q"),
        "messages with bodies": mqstore("messages", store, "-o", "jsonl", "--body", "sha256", "--to-offset", 1 << 30, "-q"),
    }
    for name, command in commands.items():
        run = child(*command)
        assert run.status == 0, run.stdout[-2000:]
        bench.emit(
            Row(
                f"memory of {name}",
                "RSS <= 400 MB",
                {"peak RSS MB": run.rss / 1e6, "peak anonymous MB": run.anonymous / 1e6, "seconds": run.seconds},
                met=run.rss <= 400e6,
            )
        )


if __name__ == "__main__":
    main()
