"""Consoles that listen, and browser windows on them. Needs a Chromium on the machine and the package playwright."""

from __future__ import annotations

import lzma
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mqstore.console.app import create_server
from mqstore.console.jobs import Jobs
from mqstore.console.page import Console
from mqstore.console.settings import Settings

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(__file__).parent.parent / "console" / "axe" / "axe.min.js.xz"


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as run:
        started = run.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def serious_faults(page: Any) -> list[str]:
    """Return what axe rates serious or critical on a page."""
    page.evaluate(lzma.decompress(AXE.read_bytes()).decode())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


class Served:
    """A console that listens on a free port. jobs: its jobs."""

    def __init__(self, *stores: str, **settings: Any) -> None:
        told = threading.Event()
        place: list[object] = []

        def ready(host: str, port: int) -> None:
            place.extend((host, port))
            told.set()

        self._server = create_server(Settings(stores, port=0, **settings), ready)
        self._thread = threading.Thread(target=self._server.run, name="console")
        self._thread.start()
        assert told.wait(30)
        self.address = f"http://{place[0]}:{place[1]}"

    @property
    def jobs(self) -> Jobs:
        found: Console = self._server.config.app.state.console  # type: ignore[union-attr]
        return found.jobs

    def settle(self) -> None:
        """Wait for every job."""
        for job in self.jobs.all():
            assert job.settled.wait(60)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


class Window:
    """A browser window on a console. complaints: browser messages about pages, including refused scripts and styles."""

    def __init__(self, browser: Any, served: Served, **options: Any) -> None:
        self.context = browser.new_context(base_url=served.address, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, path: str) -> Any:
        self.page.goto(path)
        return self.page

    def faults(self) -> list[str]:
        """Return what axe rates serious or critical on the current page."""
        return serious_faults(self.page)

    @property
    def overflows(self) -> bool:
        """Return whether the page is wider than the window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))
