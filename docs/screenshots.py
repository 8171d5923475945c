"""Takes pictures of the live page in Chromium, over simulated jobs that were judged by the very analysis of the daemon.

`make screenshots` runs it: every scene in all sizes, palettes and languages into build/screenshots/, to be looked at; two
of them into docs/pictures/, which the README shows. Nothing is waited for: a scene is fed at once and stands still.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from exporter.collector import Exposition
from exporter.model import Snapshot
from exporter.server import Server
from exporter.session import Session
from exporter.sources.simulator import simulate
from exporter.trend import Trend

ROOT = Path(__file__).parent.parent
OUT, KEPT = ROOT / "build" / "screenshots", ROOT / "docs" / "pictures"
SECONDS = 150.0
SCENES = ("perfect_overlap", "serialized", "input_stall", "idle", "two_jobs")
SIZES = ((1400, 900), (1000, 700), (500, 900))
LARGEST_BYTES = 300_000
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"]


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture. whole: of the whole page, in place of what fits into the window."""

    scene: str
    size: tuple[int, int] = (1400, 900)
    scheme: str = "dark"
    language: str = "en"
    whole: bool = True
    keep: str | None = None  # its name in docs/pictures

    @property
    def name(self) -> str:
        return f"{self.scene}-{self.size[0]}-{self.scheme}-{self.language}"


SHOTS = (
    *(Shot(scene, size, scheme, language) for scene in SCENES for size in SIZES
      for scheme, language in (("dark", "en"), ("light", "zh"))),
    Shot("serialized", (1280, 880), whole=False, keep="page_serialized.png"),
    Shot("perfect_overlap", (1280, 880), whole=False, keep="page_overlapped.png"),
)  # fmt: skip


class Still:
    """A daemon whose session has ended: what the server asks for, and nothing moves."""

    def __init__(self, scene: str) -> None:
        session = Session()
        self.trend = Trend(session.verdict_window_s)
        for event in simulate(scene, SECONDS, seed=1):
            t_s = getattr(event, "t_s", 0.0)
            if session.advance(t_s):
                self.trend.add(session.verdicts.at_s, session.verdicts.analyses)
            session.take(event)
        session.finish(SECONDS)
        self.switch = None
        self.history = session.history
        self._snapshot = Snapshot(
            t_s=SECONDS, wall_s=session.inventory.started_unix_s + SECONDS, inventory=session.inventory, mode="demo",
            latest=session.history.latest(SECONDS), analyses=session.verdicts.analyses, phases=session.analyzer.phases,
            findings=session.verdicts.findings, transport=session.verdicts.transport.transport,
            sources=session.history.health(), refresh=session.analyzer.refresh,
            verdict_window_s=session.verdict_window_s,
        )  # fmt: skip
        self.exposition = Exposition.render(self._snapshot)

    def not_ready(self) -> str | None:
        return None


@contextmanager
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield opened
        opened.close()


def shoot(chromium: Any, url: str, shot: Shot) -> Path:
    """Take one picture; RuntimeError where the page complains."""
    complaints: list[str] = []
    context = chromium.new_context(
        viewport={"width": shot.size[0], "height": shot.size[1]}, color_scheme=shot.scheme,
        locale={"en": "en-GB", "zh": "zh-CN"}[shot.language],
    )  # fmt: skip
    page = context.new_page()
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.goto(f"{url}#gpu=0")
    page.wait_for_selector("#phase-legend .phase")
    page.wait_for_selector("#trend canvas")
    page.wait_for_timeout(300)
    target = KEPT / shot.keep if shot.keep else OUT / f"{shot.name}.png"
    page.screenshot(path=target, full_page=shot.whole)
    context.close()
    if shot.keep:  # 256 colours are enough for lines and words
        Image.open(target).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    if complaints:
        raise RuntimeError(f"{shot.name}: {complaints}")
    return target


def main() -> None:
    """All pictures, or those whose names hold one of the words given."""
    OUT.mkdir(parents=True, exist_ok=True)
    words = sys.argv[1:]
    with browser() as chromium:
        for scene in SCENES:
            shots = [s for s in SHOTS if s.scene == scene and (not words or any(w in s.name for w in words))]
            if not shots:
                continue
            server = Server("127.0.0.1:0", None, Still(scene))
            server.start()
            try:
                for shot in shots:
                    target = shoot(chromium, server.url, shot)
                    size = target.stat().st_size
                    print(f"{target.relative_to(ROOT)}: {size / 1e3:.0f} kB")
                    if shot.keep and size > LARGEST_BYTES:
                        raise RuntimeError(f"{target}: {size} bytes, more than {LARGEST_BYTES}")
            finally:
                server.stop()


if __name__ == "__main__":
    main()
