"""A process that checks images, so that a hang, unbounded memory or a crash of the interpreter ends it and not the run.

    python -m fuzz.worker FAMILY PLACE SECONDS

reads lines `FIRST STOP` from standard input and checks the images FIRST to STOP - 1 in the directory PLACE, each within SECONDS. On
standard output: `N` before the image N, `{…}` for a failure, `done` after the last image of a line.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import traceback
from pathlib import Path

from fuzz.images import Images
from support.guard_pages import install_if_asked

MOST_MEMORY = 1 << 30  # bytes of address space beyond what the process has after its first images
WARM_UP = 3


def address_space() -> int:
    """Return the address space of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def check(images: Images, number: int, seconds: float) -> dict[str, object] | None:
    """Check one image; return the failure. A process whose image takes too long ends with the trace on standard error."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        images.check(images.image(number))
    except Exception as error:  # the next image is checked whatever this one did
        trace = "" if isinstance(error, AssertionError) else "".join(traceback.format_exception(error))
        told = f"{type(error).__name__}: {error}"
        return {"number": number, "error": told[:2000], "image": "; ".join(getattr(error, "__notes__", ())), "trace": trace[-4000:]}
    finally:
        faulthandler.cancel_dump_traceback_later()
    return None


def work(family: str, place: Path, seconds: float) -> None:
    images = Images(family, place)
    count = 0
    for line in sys.stdin:
        first, stop = map(int, line.split())
        for number in range(first, stop):
            print(number, flush=True)
            if count == WARM_UP:
                resource.setrlimit(resource.RLIMIT_AS, (address_space() + MOST_MEMORY, resource.RLIM_INFINITY))
            failure = check(images, number, seconds)
            if failure is not None:
                print(json.dumps(failure), flush=True)
            count += 1
        print("done", flush=True)


if __name__ == "__main__":
    faulthandler.enable()
    install_if_asked()
    work(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
