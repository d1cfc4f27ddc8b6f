"""The test kit: crash replay and injected faults for whatever writes through the durable layer.

    recorded = RecordedWrites()                      # the recorder of a store or a DurableDirectory
    ... the run, with recorded.mark("acknowledged", x) for each promise ...
    run_states(CrashStates(recorded, limit=20_000), check)
    every_fault(run, check)

`mqstore.testing.crashes` and `mqstore.testing.faults` have examples that run.
"""

from mqstore.files.recorder import Mark, RecordedWrites
from mqstore.testing.crashes import CrashCheckError, CrashRun, CrashState, CrashStates, run_states, scratch_directory
from mqstore.testing.faults import FailingDisk, Fault, FaultCheckError, FaultRun, every_fault
from mqstore.testing.losses import LossKind

__all__ = [
    "CrashCheckError",
    "CrashRun",
    "CrashState",
    "CrashStates",
    "FailingDisk",
    "Fault",
    "FaultCheckError",
    "FaultRun",
    "LossKind",
    "Mark",
    "RecordedWrites",
    "every_fault",
    "run_states",
    "scratch_directory",
]
