"""Chromium for the tests that look at pages: Debian's package, driven by Playwright. Without either they skip."""

from __future__ import annotations

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """The browser's path, or None where there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def chromium():
    """A headless browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    path = executable()
    if path is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """open_page(address, width, dark) -> a drawn page; its `said` collects console messages, errors and requests."""
    contexts = []

    def open_at(address: str, width: int = 1280, dark: bool = False, touch: bool = False):
        scheme = "dark" if dark else "light"
        size = {"width": width, "height": 900}
        context = chromium.new_context(viewport=size, color_scheme=scheme, has_touch=touch)
        contexts.append(context)
        page = context.new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (page.said.append("dialog"), dialog.dismiss()))
        own = ("data:", address.partition("#")[0])
        page.on("request", lambda r: None if r.url.startswith(own) else page.said.append(r.url))
        page.goto(address)
        page.wait_for_selector("body[data-ready=yes]")
        return page

    yield open_at
    for context in contexts:
        context.close()
