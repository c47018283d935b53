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


def write_matrix(run: Path, matrix: list[list[int]]) -> None:
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    for line in lines:
        line["metrics"] = {"confusion": {"sketch": {"main": matrix}}}
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("width", [1280, 390])
def test_a_matrix_of_many_classes(browser: "Browser", tmp_path: Path, width: int) -> None:
    run = write_run(tmp_path / "run", "erm", "sketch", classes=CLASSES, metrics=["confusion"])
    write_matrix(run, [[9 if row == column else row % 2 for column in range(CLASSES)] for row in range(CLASSES)])
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


@pytest.mark.parametrize("name", ["WWWWWWWWWWWWWWWW", "FIRE_EXTINGUISHER", "牛" * 20, "fire_extinguisher"])
def test_names_of_classes_are_not_cut_off(browser: "Browser", tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", "erm", "sketch", metrics=["confusion"])
    config = json.loads((run / "config.json").read_text())
    config["data"]["classes"] = [name, "dog"]
    (run / "config.json").write_text(json.dumps(config))
    write_matrix(run, [[9, 1], [1, 9]])
    write_page(tmp_path / "page.html", [run])
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.locator(".view:not([hidden]) summary", has_text="1 confusion matrix").click()
    boxes = page.locator(".view:not([hidden]) .matrices svg").evaluate(
        "svg => [...svg.querySelectorAll('text')].map((one) => one.getBoundingClientRect().toJSON())"
    )
    predicted, true, *names = boxes
    assert min(box["left"] for box in names) >= true["right"]
    assert min(box["top"] for box in names) >= predicted["bottom"]
    page.close()
