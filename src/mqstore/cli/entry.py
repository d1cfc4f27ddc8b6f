"""The console script. `serve` starts without importing the other commands; all else goes to `main`."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


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
    if len(sys.argv) > 2 and sys.argv[1] == "serve":
        from mqstore.cli.serve.fast_start import parse_serve_options, run

        options = parse_serve_options(sys.argv[2:])
        if options is not None:
            try:
                return run(options)
            except Exception as error:
                from mqstore.cli.main import report_failure

                return report_failure(error, verbose=options.verbose)
    from mqstore.cli.main import main as full

    return full()
