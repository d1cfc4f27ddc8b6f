"""What the commands that put messages share: the store they write to, opened or created, and deferred interrupts.

These commands run none of a broker's services: nothing expires, and no delayed message is delivered. When one ends, the messages it
reports as put are dispatched and on disk, and the store is closed cleanly.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from mqstore.cli.common.arguments import option
from mqstore.cli.common.command import open_store
from mqstore.cli.common.output import Output
from mqstore.errors import MqstoreError, TargetError, UsageError
from mqstore.table.formatting import command

if TYPE_CHECKING:
    from mqstore.rocketmq.config.store_config import StoreConfig
    from mqstore.rocketmq.engine.message_store import MessageStore
    from mqstore.rocketmq.format.message import PutStatus

WritableStore = Annotated[
    Path,
    typer.Argument(metavar="STORE", help="The directory that contains commitlog/. It is written to.", show_default=False, readable=False),
]
Create = Annotated[bool, typer.Option("--create", help="Create the store if it does not exist.")]
Sync = Annotated[bool, typer.Option("--sync", help="Wait for the disk after each put, like a broker with SYNC_FLUSH.")]
AsWriter = Annotated[
    str | None,
    option(
        "--for",
        "--as",
        metavar="VERSION",
        help="The broker version whose rules apply, 4.3.0 to 5.5.0; by default the one that the files suggest.",
    ),
]


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """The store that a command writes to, as given by its options."""

    path: Path
    create: bool
    as_version: str | None
    sync: bool
    config: Path | None

    def settings(self) -> StoreConfig:
        """Return the settings of the store. Raises UsageError, CannotOpenError."""
        from mqstore.rocketmq.config import broker_config
        from mqstore.rocketmq.config.store_config import StoreConfig

        config = StoreConfig(version=self.as_version, services=False)
        if self.config is not None:
            config = config.with_broker(broker_config.load_properties(self.config))
        return replace(config, flush_disk_type="SYNC_FLUSH") if self.sync else config

    def root(self) -> tuple[Path, bool]:
        """Return the directory, and whether to create a store in it. Raises UsageError, CannotOpenError, NotAStoreError, TargetError."""
        from mqstore.files.location import check_creation, refuse_address

        refuse_address(str(self.path), f"give a store's directory; {command('mqstore', 'replay')} sends messages to a broker")
        if check_creation(self.path, self.create):
            return self.path, True
        store = open_store(self.path, self.config)
        store.require_directory_for("writing")
        if store.path != store.directory.root:
            raise TargetError(f"{self.path} is an archive, which cannot be changed; unpack it first")
        return store.directory.root, False


def open_target(out: Output, target: StoreTarget) -> tuple[MessageStore, bool]:
    """Open the store; return it and whether it is new. What recovery discarded is printed as notes."""
    from mqstore.rocketmq.config import broker_config
    from mqstore.rocketmq.config.broker_paths import refuse_second_log
    from mqstore.rocketmq.engine.message_store import MessageStore

    settings = target.settings()
    root, new = target.root()
    if target.config is not None:
        refuse_second_log(broker_config.load(target.config), root)
    store = MessageStore.open(root, settings)
    for note in store.notes:
        out.note(f"recovery as {store.version}: {note}")
    return store, new


def refusal(status: PutStatus, detail: str, version: str) -> MqstoreError:
    """Return the error for messages that were not stored."""
    return (UsageError if status.is_refusal else TargetError)(f"{detail} ({status.spelled(version)})")


class StoppedError(MqstoreError):
    """The work was interrupted. The message says how far it got."""

    exit_status = 130


class Interrupts:
    """Handles Ctrl-C and SIGTERM while a store is written: at once, or after a `held` block."""

    def __init__(self) -> None:
        self._held = False
        self._pending = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._held:
            raise KeyboardInterrupt
        self._pending = True

    @contextmanager
    def held(self, *, until_asked: bool = False) -> Iterator[None]:
        """Run the block to its end; an interrupt takes effect after it, or at the next `ask`."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if not until_asked:
            self.ask()

    def ask(self) -> None:
        """Raise a deferred interrupt."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt
