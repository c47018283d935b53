"""The browser of all page tests; without one they are skipped."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright, to drive a browser")
    if CHROMIUM is None:
        pytest.skip("needs chromium on the path")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield launched
        launched.close()
