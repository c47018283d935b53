"""Screenshots of a page for the docs: in a wide window and on a phone.

domainwise demo
python benchmarks/page_screenshots.py runs/demo/demo.html docs
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
WINDOWS = {"wide": (1280, 1500), "phone": (390, 1500)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, (width, height) in WINDOWS.items():
            window = browser.new_page(viewport={"width": width, "height": height})
            window.goto(options.page.resolve().as_uri())
            screenshot = Image.open(io.BytesIO(window.screenshot())).convert("RGB")
            file = options.folder / f"page_{name}.png"
            screenshot.quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
            print(f"{file}: {screenshot.width} x {screenshot.height}, {file.stat().st_size // 1024} kB")
        browser.close()


if __name__ == "__main__":
    main()
