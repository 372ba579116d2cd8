"""Makes the pictures of docs/dashboard.md: ``python -m tests.streams_web.take_pictures``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headrace.streams.queries import feeds, replicas
from tests.streams_web.test_live_page import CHROMIUM, Scene, Stores

IMAGES = Path("docs/images")
LOOKS = (("page.png", 1200, 760, "light"), ("page-phone.png", 390, 760, "dark"))


def take(directory: Path) -> None:
    """Take them all, of the scene of the tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, width, height, scheme in LOOKS:
            scene = Scene(browser)
            scene.page.set_viewport_size({"width": width, "height": height})
            scene.page.emulate_media(color_scheme=scheme)
            page = scene.open()
            page.wait_for_timeout(5_000)
            page.screenshot(path=directory / name)
            scene.close()
        take_asked(browser, directory)
        browser.close()


def take_asked(browser: Any, directory: Path) -> None:
    """Take that of a store which is asked and followed."""
    with (
        tempfile.TemporaryDirectory() as home,
        patch.object(replicas, "UPDATE_EVERY_MAX_S", 0.0),
        patch.object(feeds, "LiveCluster", lambda _: stores.memory),
    ):
        stores = Stores(Path(home))
        scene = Scene(browser, queries=lambda: stores.queries)
        stores.send("words", *((word, "") for word in ["the", "rose", "is", "the", "rose"]))
        page = scene.open()
        page.wait_for_selector("#question")
        page.select_option("#store", "counts")
        page.fill("#key", "the")
        page.press("#key", "Enter")
        page.wait_for_selector("text=a row, in")
        page.fill("#key", "")
        page.click("#follow")
        page.wait_for_timeout(1_000)
        for words in ("a rose", "the daisy", "is not", "the rose"):
            stores.send("words", *((word, "") for word in words.split()))
        page.wait_for_selector("#changes tbody tr:nth-child(8)")
        page.locator("#ask").screenshot(path=directory / "page-ask.png")
        scene.close()
        stores.close()


if __name__ == "__main__":
    take(IMAGES)
