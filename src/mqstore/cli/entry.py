"""The console script. `serve` takes a short way in, so that a broker is there at once; everything else is `main`'s."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process."""
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
