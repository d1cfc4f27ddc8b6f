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

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_MODULES = {
    "Client": "mqstore.testing.client",
    "ClientError": "mqstore.replay.rocketmq_target",
    "CrashCheckError": "mqstore.testing.crashes",
    "CrashRun": "mqstore.testing.crashes",
    "CrashState": "mqstore.testing.crashes",
    "CrashStates": "mqstore.testing.crashes",
    "FailingDisk": "mqstore.testing.faults",
    "Fault": "mqstore.testing.faults",
    "FaultCheckError": "mqstore.testing.faults",
    "FaultRun": "mqstore.testing.faults",
    "LossKind": "mqstore.testing.losses",
    "Mark": "mqstore.files.recorder",
    "ReceivedMessage": "mqstore.testing.client",
    "RecordedWrites": "mqstore.files.recorder",
    "RocketMQTestCase": "mqstore.testing.running_broker",
    "RunningBroker": "mqstore.testing.running_broker",
    "SendReceipt": "mqstore.testing.client",
    "every_fault": "mqstore.testing.faults",
    "run_states": "mqstore.testing.crashes",
    "scratch_directory": "mqstore.testing.crashes",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first access."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
