"""Makes the pictures of docs/page.md: ``python -m tests.streams_web.take_pictures``."""

from __future__ import annotations

from pathlib import Path

from tests.streams_web.test_live_page import CHROMIUM, Scene

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
        browser.close()


if __name__ == "__main__":
    take(IMAGES)
