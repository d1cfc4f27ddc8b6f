"""The console script. `serve` starts without importing the other commands; all else goes to `main`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run this process's command line."""
    try:
        _run()
    except KeyboardInterrupt:  # before a command has begun
        print("mqstore: interrupted", file=sys.stderr)
        sys.exit(130)


def _run() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "serve":
        from mqstore.cli.serve.fast_start import parse_serve_options, run

        options = parse_serve_options(sys.argv[2:])
        if options is not None:
            try:
                sys.exit(run(options))
            except Exception as error:
                from mqstore.cli.main import report_failure

                sys.exit(report_failure(error, verbose=options.verbose))
    from mqstore.cli.main import main as full

    full()
