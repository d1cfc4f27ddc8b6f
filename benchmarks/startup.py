"""CPU time of the shortest commands and of `import mqstore`, in a new process each, beside what they stand on.

The neighbours, each measured in every round: the interpreter alone, and the imports of NumPy, and of Typer and Rich.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchkit import Bench, Row, Target, mqstore

from mqstore.rocketmq import Message, MessageStore, StoreConfig

INTERPRETER = 16.0  # milliseconds of the interpreter alone, on the machine that the targets are for
NEIGHBOURS = {
    "interpreter": "pass",
    "numpy": "import numpy",
    "typer, rich": "import typer, rich.console, rich.table",
}


def cpu(*command: object) -> float:
    """Return the CPU time of a command in milliseconds, user and system."""
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    words = [str(word) for word in command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    _, status, usage = os.wait4(os.posix_spawnp(words[0], words, environment, file_actions=quiet), 0)
    assert status == 0, words
    return (usage.ru_utime + usage.ru_stime) * 1e3


def main() -> None:
    bench = Bench(__doc__ or "")
    with tempfile.TemporaryDirectory() as place:
        store = Path(place) / "store"
        sizes = StoreConfig(commit_log_file_size=1 << 20, consume_queue_file_size=20_000, max_hash_slot_num=1000, max_index_num=4000)
        with MessageStore.open(store, sizes) as engine:
            for number in range(100):
                engine.put(Message("orders", b"paid", keys=f"o-{number}"))
        measured = {
            "mqstore --version": (60, mqstore("--version")),
            "mqstore --help": (200, mqstore("--help")),
            "mqstore inspect, 100 messages": (350, mqstore("inspect", store)),
            "import mqstore": (40, [sys.executable, "-c", "import mqstore"]),
        }
        commands = {what: command for what, (_, command) in measured.items() if bench.wants(what)}
        commands |= {name: [sys.executable, "-c", code] for name, code in NEIGHBOURS.items()}
        for command in commands.values():
            cpu(*command)  # the first run also compiles modules
        rounds = [{what: cpu(*command) for what, command in commands.items()} for _ in range(bench.rounds)]
    times = {what: [each[what] for each in rounds] for what in commands}
    beside = {name: times.pop(name) for name in NEIGHBOURS}
    for what, shown in times.items():
        there = [took * INTERPRETER / alone for took, alone in zip(shown, beside["interpreter"], strict=True)]
        conditions = "CPU time; the target is for a machine whose interpreter takes 16 ms, and so is ms_there"
        target = Target("<=", measured[what][0], "ms", there)
        bench.emit(Row(what, [target], {"ms": shown, "ms_there": there}, beside, conditions=conditions))


if __name__ == "__main__":
    main()
