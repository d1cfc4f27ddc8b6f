"""The console script. `serve` takes a short way in, so that a broker is there at once; everything else is `main`'s."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process."""
    if len(sys.argv) > 2 and sys.argv[1] == "serve":
        from mqstore.cli.serve.fast_start import run, taken

        options = taken(sys.argv[2:])
        if options is not None:
            try:
                sys.exit(run(options))
            except Exception as error:
                from mqstore.cli.main import failed

                sys.exit(failed(error, verbose=options.verbose))
    from mqstore.cli.main import main as full

    full()
