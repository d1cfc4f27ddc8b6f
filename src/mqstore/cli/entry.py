"""The console script: `--version` without the parser, all else with it."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


class _WithoutPandas:
    """Finds no pandas, as if it were not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("no command needs pandas", name=fullname)


def main() -> NoReturn:
    """Run this process's command line."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    if sys.stdout is None:
        print("mqstore: standard output is closed; give it a file, or /dev/null", file=sys.stderr)
        sys.exit(2)
    try:
        status = _run()
    except KeyboardInterrupt:  # before a command has begun
        print("mqstore: interrupted before it began; nothing was done", file=sys.stderr)
        status = 130
    _end(status)


def _end(status: int) -> NoReturn:
    """End the process with a status, which an interruption from now on does not change: what the command said is true."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    exec("")  # after an interrupted exec, Python would end by the signal, not with the status; another exec prevents that
    sys.exit(status)


def _run() -> int:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from mqstore.version import __version__

        print(f"mqstore {__version__}")
        return 0
    # no matrices are multiplied here; NumPy is imported in half the time if it starts no threads for that
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # PyArrow imports pandas before its first array if there is one, for half a second; of all commands only Spark Connect needs it
    if not any("sc://" in argument for argument in sys.argv):
        sys.meta_path.insert(0, _WithoutPandas())
    from mqstore.cli.main import main as full

    return full()
