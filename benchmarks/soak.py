"""Our broker under the unmodified 4.9.3 Java client for an hour: whether memory, descriptors and latency stay flat.

`--scale 1` is an hour. A producer sends 500 messages of 1 KiB a second, a push consumer takes them; topics and consumer groups are
created, used and deleted one after the other by an administrator's requests (tests/interop/rocketmq-clients, Soak). Log files of 16 MiB
are deleted as soon as they are full and a later one exists, whatever the hour, so that retention works all the time. Every minute: what the
client counted, and the resident memory, open descriptors and threads of the broker, and the bytes of its store. An index file grows until
it has 20,000,000 keys, so its bytes are in a row of their own, which has no target.
The rows compare the last third of the run with the first, window by window in turn; the first tenth is warming up.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchkit import Bench, Row, Target, divided, mqstore
from brokering import broker_of, free_port, java, resident

RATE = 500  # messages a second
HOUR = 3600
CONFIGURATION = f"""\
mappedFileSizeCommitLog={16 << 20}
fileReservedTime=0
deleteWhen={";".join(f"{hour:02d}" for hour in range(24))}
"""


@dataclass(frozen=True)
class Sample:
    """A window of the run: what the client counted in it, and what the broker held at its end."""

    client: dict[str, Any]
    megabytes: float
    descriptors: int
    threads: int
    store_megabytes: float
    index_megabytes: float


def sampled(client: dict[str, Any], process: subprocess.Popen[bytes], store: Path) -> Sample:
    proc = Path(f"/proc/{process.pid}")
    index = occupied(store / "index")
    return Sample(client, resident(process), count(proc / "fd"), count(proc / "task"), (occupied(store) - index) / 1e6, index / 1e6)


def occupied(place: Path) -> int:
    """Return the bytes that files and directories below a path occupy on the disk; what is removed meanwhile does not count."""
    total = 0
    for path in place.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


def count(directory: Path) -> int:
    return sum(1 for _ in directory.iterdir())


def main() -> int:
    bench = Bench(__doc__ or "")
    seconds = max(60, round(HOUR * bench.options.scale))
    window = min(60, seconds // 12)
    samples: list[Sample] = []
    with bench.scratch("soak") as directory:
        directory.mkdir()
        settings = directory / "broker.conf"
        settings.write_text(CONFIGURATION, encoding="utf-8")
        port, store = free_port(), directory / "store"
        command = mqstore("serve", store, "--listen", f"127.0.0.1:{port}", "--auto-create-topics", "--config", settings)
        with broker_of(command, directory) as process:
            soak = java(directory, "Soak", f"127.0.0.1:{port}", seconds, RATE, window, heap=("-Xmx512m",))
            client = subprocess.Popen(soak, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert client.stdout is not None
            for line in client.stdout:
                if line.startswith("{"):
                    samples.append(sampled(json.loads(line), process, store))
                    print(f"# {line.strip()} {samples[-1]}".replace(f"client={samples[-1].client}, ", ""), flush=True)
            if client.wait() or process.poll() is not None or not samples:
                raise RuntimeError("the client or the broker ended before the run did")
    return 0 if report(bench, samples, seconds) else 1


def report(bench: Bench, samples: Sequence[Sample], seconds: int) -> bool:
    """Emit the rows; return whether no message and no topic failed or is missing."""
    warm = samples[len(samples) // 10 :]
    third = max(1, len(warm) // 3)
    early, late = warm[:third], warm[-third:]
    conditions = f"{seconds / 60:.0f} minutes, {len(samples)} windows"

    def compared(what: str, limit: float | None, unit: str, of: Callable[[Sample], float]) -> None:
        before, after = [of(each) for each in early], [of(each) for each in late]
        targets = [] if limit is None else [Target("<=", limit, "x the first third")]
        figures = {f"first third, {unit}": before, f"last third, {unit}": after}
        bench.emit(Row(f"soak: {what}", targets, figures, {}, divided(after, before), conditions))

    compared("resident memory", 1.1, "MB", lambda each: each.megabytes)
    compared("open descriptors", 1.1, "count", lambda each: each.descriptors)
    compared("threads", 1.1, "count", lambda each: each.threads)
    compared("store on disk without index, with retention", 1.2, "MB", lambda each: each.store_megabytes)
    compared("index on disk", None, "MB", lambda each: each.index_megabytes)
    compared("latency of sends, p50", 1.25, "us", lambda each: each.client["p50"])
    compared("latency of sends, p99.9", 1.5, "us", lambda each: each.client["p999"])
    total = {name: sum(each.client[name] for each in samples) for name in ("sent", "received", "topics", "failed", "incomplete", "expired")}
    good = not total["failed"] and not total["incomplete"] and total["received"] >= total["sent"] - 2 * RATE
    what = f"soak: messages, topics that came and went: {'none failed, all received' if good else 'SOME FAILED OR ARE MISSING'}"
    bench.emit(Row(what, (), total, conditions=conditions))
    return good


if __name__ == "__main__":
    sys.exit(main())
