"""Crash states of one recorded run, checked in a process of its own.

    python -m proofs.crashes FAMILY SEED LIMIT [STATE]

records the run SEED of an engine, lays out LIMIT of the states that a crash may leave (or the one named STATE), opens each, and prints one
JSON object: how many were checked, and the first failure. `support.crash_engine` and `support.crash_queues` say what must hold.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interop.realbroker import VERSIONS
from support import crash_engine, crash_queues

from mqstore.testing.crashes import CrashCheckError, CrashState, CrashStates, run_states, scratch_directory

SECONDS = 1200  # for one run


def recorded(family: str, seed: int, place: Path) -> tuple[Any, Callable[[Path, CrashState], object]]:
    """Record a run; return its writes, and the check of a state."""
    place.mkdir()
    if family == "rocketmq":
        life = crash_engine.record_run(place, seed, VERSIONS[seed % 2])
        return life.recorded, lambda directory, state: crash_engine.check_state(directory, state, life)
    lives = crash_queues.record_run(place, seed)
    return lives.recorded, lambda directory, state: crash_queues.check_state(directory, state, lives)


def prove(family: str, seed: int, limit: int, name: str | None = None) -> dict[str, Any]:
    """Check states of a run. Returns how many, and the first failure, by the name of its state."""
    with scratch_directory() as scratch:
        writes, check = recorded(family, seed, Path(scratch, "store"))
        states = CrashStates(writes, limit=limit if name is None else 1, seed=seed, whole_sectors=True)
        try:
            if name is not None:
                state = states.state(name)
                with tempfile.TemporaryDirectory(dir=scratch) as directory:
                    state.lay_out(directory)
                    check(Path(directory), state)
                return {"done": 1, "failure": None}
            done = run_states(states, check, workers=1, report=lambda _: None)
        except CrashCheckError as error:
            text = str(error)
            return {"done": 0, "failure": {"state": text.removeprefix("crash state ").partition(":")[0], "error": text}}
        except Exception as error:  # of the one state that was asked for
            return {"done": 1, "failure": {"state": name, "error": f"{type(error).__name__}: {error}"}}
        return {"done": sum(done.checked.values()), "failure": None}


if __name__ == "__main__":
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    print(json.dumps(prove(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)))
