"""Confusion matrices in a real browser: they open by keyboard, and scroll in their own box on a phone."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from domainwise.reports.html import write_page
from run_folders import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CLASSES = 65


@pytest.mark.parametrize("width", [1280, 390])
def test_a_matrix_of_many_classes(browser: "Browser", tmp_path: Path, width: int) -> None:
    run = write_run(tmp_path / "run", "erm", "sketch", classes=CLASSES, metrics=["confusion"])
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    matrix = [[9 if row == column else row % 2 for column in range(CLASSES)] for row in range(CLASSES)]
    for line in lines:
        line["metrics"] = {"confusion": {"sketch": {"main": matrix}}}
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_page(tmp_path / "page.html", [run])
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((tmp_path / "page.html").as_uri())
    view = page.locator(".view:not([hidden])")
    assert not view.locator(".matrices svg").is_visible()
    view.locator("summary", has_text="1 confusion matrix").focus()
    page.keyboard.press("Enter")
    region = view.locator(".matrices .scroll").first
    assert region.locator("svg").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    is_scrolling = region.evaluate("element => element.scrollWidth > element.clientWidth")
    assert is_scrolling == (width == 390)
    # The names of classes keep a size that can be read.
    heights = region.locator("text.name").evaluate_all(
        "all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))"
    )
    drawn = region.locator("svg").evaluate("svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width")
    assert len(heights) == 2 * CLASSES
    assert min(heights) * drawn >= 8
    aligned = (
        view.locator(".classes tbody tr")
        .first.locator("td")
        .evaluate_all("all => all.map((one) => getComputedStyle(one).textAlign)")
    )
    assert aligned == ["right", "right", "left"]
    page.close()
