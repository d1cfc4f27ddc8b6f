"""The test kit: a broker in the process of a test, crash replay, and injected I/O faults.

    with RunningBroker(path) as rocketmq: ...        # a broker, and helpers that send and receive; as a pytest fixture: `rocketmq`
    class OrderTest(RocketMQTestCase): ...           # the same for unittest: `self.rocketmq`

    recorded = RecordedWrites()                      # the recorder of a store or a DurableDirectory
    ... the run, with recorded.mark("acknowledged", x) for each promise ...
    run_states(CrashStates(recorded, limit=20_000), check)
    every_fault(run, check)

The names in `__all__` are the public interface. Deeper module paths are private and may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.public_names import on_first_use

if TYPE_CHECKING:
    from mqstore.files.recorder import Mark, RecordedWrites
    from mqstore.replay.rocketmq_target import ClientError
    from mqstore.testing.client import Client, ReceivedMessage, SendReceipt
    from mqstore.testing.crashes import CrashCheckError, CrashRun, CrashState, CrashStates, run_states, scratch_directory
    from mqstore.testing.faults import FailingDisk, Fault, FaultCheckError, FaultRun, every_fault
    from mqstore.testing.losses import LossKind
    from mqstore.testing.running_broker import RocketMQTestCase, RunningBroker

__all__ = [
    "Client",
    "ClientError",
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
    "ReceivedMessage",
    "RecordedWrites",
    "RocketMQTestCase",
    "RunningBroker",
    "SendReceipt",
    "every_fault",
    "run_states",
    "scratch_directory",
]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "mqstore.files.recorder": ["Mark", "RecordedWrites"],
        "mqstore.replay.rocketmq_target": ["ClientError"],
        "mqstore.testing.client": ["Client", "ReceivedMessage", "SendReceipt"],
        "mqstore.testing.crashes": ["CrashCheckError", "CrashRun", "CrashState", "CrashStates", "run_states", "scratch_directory"],
        "mqstore.testing.faults": ["FailingDisk", "Fault", "FaultCheckError", "FaultRun", "every_fault"],
        "mqstore.testing.losses": ["LossKind"],
        "mqstore.testing.running_broker": ["RocketMQTestCase", "RunningBroker"],
    },
)
