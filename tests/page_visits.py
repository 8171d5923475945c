"""The live page in Debian's Chromium: fixtures for the tests of what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from exporter.history import History
from exporter.model import Snapshot
from exporter.server import Server
from tests import snapshots
from tests.test_server import Daemon
from tests.tools import require

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=require("chromium"), headless=True, args=ARGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def history() -> History:
    return snapshots.history()


Visit = Callable[..., tuple[Any, Daemon]]


@pytest.fixture
def visit(browser: Any, history: Any) -> Iterator[Visit]:
    """Opens the page over a daemon that shows one snapshot; fails where the browser complains of anything."""
    complaints: list[str] = []
    undo: list[Callable[[], None]] = []

    def open_page(snapshot: Snapshot, locale: str = "en-GB", width: int = 1400, scheme: str = "dark", hash_: str = "",
                  of: History | None = None) -> tuple[Any, Daemon]:  # fmt: skip
        daemon = Daemon(snapshot, of or history)
        for at_s in range(5, 400, 5):
            daemon.trend.add(float(at_s), [a for a in snapshot.analyses if a.window_s == 60.0])
        server = Server("127.0.0.1:0", None, daemon)
        server.start()
        undo.append(lambda: server.stop(5.0))
        page = visit_url(server.url + hash_, locale, width, scheme)
        page.stop_server = lambda: server.stop(5.0)
        return page, daemon

    def visit_url(url: str, locale: str = "en-GB", width: int = 1400, scheme: str = "dark") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, locale=locale, color_scheme=scheme)
        undo.append(context.close)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.goto(url)
        return page

    open_page.url = visit_url  # type: ignore[attr-defined]
    yield open_page
    for action in reversed(undo):
        action()
    # A server that was stopped on purpose is reported by the browser itself.
    assert [c for c in complaints if "ERR_" not in c] == []
