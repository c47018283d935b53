"""The page in a real browser: no requests, sorting, switching, small screens, printing, and use by keyboard."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from domainwise.reports.html import Picture, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOMAINS = ("a_rather_long_name", "cartoon", "photo", "quickdraw", "sketch", "watercolour")
HOSTILE = "<img src=x onerror=alert(1)>"
# Higher holdouts go with lower test accuracies, so that the two selections differ.
METHODS = {"erm": 0.40, "mat": 0.55, "ldat": 0.48, HOSTILE: 0.30}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of 144 runs: four methods, six test domains, three trials, two draws."""
    folder = tmp_path_factory.mktemp("page")
    number = 0
    for algorithm, accuracy in METHODS.items():
        for place, domain in enumerate(DOMAINS):
            for trial in range(3):
                for draw in range(2):
                    number += 1
                    reached = accuracy + place / 20 + trial / 50 + draw / 10
                    write_run(folder / f"run_{number:03d}", algorithm, domain, reached, trial, draw)
    pictures = [Picture("A picture", "its caption", "a square", svg='<svg viewBox="0 0 1 1"></svg>')]
    write_page(folder / "page.html", [folder], pictures=pictures)
    return folder / "page.html"


def write_run(folder: Path, algorithm: str, tested: str, reached: float, trial: int, draw: int) -> None:
    folder.mkdir()
    hparams = {"lr": 0.001, **({} if algorithm == "erm" else {"epsilon": 0.1 + draw})}
    trained = [name for name in DOMAINS if name != tested]
    lines = []
    for step in (0, 99):
        accuracy = {name: {"holdout": 0.9 - draw / 10 + step / 1e4} for name in DOMAINS}
        accuracy[tested] = {"main": reached if step else 0.2, "holdout": reached}
        record = {"schema": 1, "step": step, "dataset": "toy", "algorithm": algorithm, "trial_seed": trial}
        record |= {"hparams_seed": draw, "train_domains": trained, "validation_domains": [], "test_domains": [tested]}
        lines.append({**record, "roles": "left_out", "hparams": hparams, "accuracy": accuracy, "loss": 1 / (1 + step)})
    config = {"dataset": "toy", "algorithm": algorithm, "hparams": hparams, "test_domains": [tested], "steps": 100}
    content = {
        "schema": 1,
        "config": {**config, "trial_seed": trial, "hparams_seed": draw},
        "data": {"classes": ["one", "two"]},
    }
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "done").touch()


@pytest.fixture
def opened(browser: "Browser", file: Path) -> Iterator[Callable[..., "Page"]]:
    """Open the page with given browser settings; any error, dialog or request fails the test."""
    contexts: list[Any] = []
    problems: list[str] = []

    def open_page(width: int = 1280, **settings: Any) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda request: problems.append(request.url) if is_foreign(request.url, file) else None)
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def is_foreign(url: str, file: Path) -> bool:
    return url != file.as_uri() and not url.startswith("data:")


def column(page: "Page", index: int, table: str = ".view:not([hidden]) table.sortable >> nth=0") -> list[str]:
    rows = page.locator(table).locator("tbody tr")
    return [rows.nth(place).locator("th, td").nth(index).inner_text() for place in range(rows.count())]


def test_page_is_self_contained(opened: Callable[..., "Page"]) -> None:
    page = opened()
    assert page.locator(".view:not([hidden]) svg.plot").count() == 1 + 3 + 1
    assert page.locator(".pictures figure").count() == 1
    assert page.locator("#run-table tbody").count() == 50


def test_headers_sort_in_both_directions(opened: Callable[..., "Page"]) -> None:
    page = opened()
    before = column(page, 1)
    header = page.locator(".view:not([hidden]) table.sortable thead th").nth(1)
    assert header.get_attribute("aria-sort") == "none"
    header.locator("button").click()
    falling = column(page, 1)
    assert header.get_attribute("aria-sort") == "descending"
    header.locator("button").click()
    rising = column(page, 1)
    assert header.get_attribute("aria-sort") == "ascending"
    numbers = [float(cell.split()[0]) for cell in before]
    assert [float(cell.split()[0]) for cell in falling] == sorted(numbers, reverse=True) != numbers
    assert rising == falling[::-1]
    page.locator(".view:not([hidden]) table.sortable thead th").nth(0).locator("button").click()
    assert column(page, 0) == sorted(METHODS)
    assert header.get_attribute("aria-sort") == "none"


def test_switch_changes_numbers_and_plots(opened: Callable[..., "Page"]) -> None:
    page = opened()
    before, plot = column(page, 1), page.locator(".view:not([hidden]) svg.plot").first.inner_html()
    selected = page.locator("#run-table tbody tr:first-child td:last-child").all_inner_texts()
    page.get_by_role("radio", name="test_domain").check(force=True)
    assert column(page, 1) != before
    assert page.locator(".view:not([hidden]) svg.plot").first.inner_html() != plot
    assert page.locator("#run-table tbody tr:first-child td:last-child").all_inner_texts() != selected
    assert page.locator(".view:visible").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone(opened: Callable[..., "Page"], scheme: str) -> None:
    page = opened(390, color_scheme=scheme, has_touch=True)
    page.locator("#run-table summary").first.click()
    page.locator("figure summary").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    region = page.locator(".view:not([hidden]) .scroll").first
    assert region.evaluate("element => element.scrollWidth > element.clientWidth")
    region.evaluate("element => element.scrollTo(200, 0)")
    first = region.locator("tbody th").first
    assert first.bounding_box()["x"] == pytest.approx(region.bounding_box()["x"], abs=1)  # type: ignore[index]


def test_dark_mode(opened: Callable[..., "Page"]) -> None:
    def looks(scheme: str) -> list[str]:
        page = opened(color_scheme=scheme)
        script = "([query, name]) => getComputedStyle(document.querySelector(query))[name]"
        asked = (["body", "backgroundColor"], ["body", "color"], [".plot text", "fill"], [".plot .c1", "color"])
        return [page.evaluate(script, each) for each in asked]

    light, dark = looks("light"), looks("dark")
    assert light[0] == "rgb(255, 255, 255)"
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_keyboard_navigation(opened: Callable[..., "Page"]) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.value") == "training_domain"
    page.keyboard.press("ArrowRight")
    assert page.locator(".view:visible").get_attribute("data-selection") == "test_domain"
    for _ in ("the table's box", "its first header", "its second"):
        page.keyboard.press("Tab")
    header = page.locator(".view:visible table.sortable thead th").nth(1)
    assert page.evaluate("document.activeElement.textContent") == DOMAINS[0]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"


def test_runs_are_filtered_sorted_and_paged(opened: Callable[..., "Page"]) -> None:
    page = opened()
    assert page.locator("#run-count").inner_text() == "144 of 144 runs"
    page.locator("#run-next").click()
    page.locator("#run-next").click()
    assert page.locator("#run-page").inner_text() == "Page 3 of 3"
    assert page.locator("#run-table tbody").count() == 44
    page.locator("#run-search").fill("MAT sketch")
    assert page.locator("#run-count").inner_text() == "6 of 144 runs"
    page.get_by_role("button", name="last").click()
    last = page.locator("#run-table tbody tr:first-child td:nth-child(8)").all_inner_texts()
    assert [float(cell) for cell in last] == sorted(map(float, last), reverse=True)
    page.locator("#run-search").fill("")
    page.locator("#run-method").select_option(HOSTILE)
    assert page.locator("#run-count").inner_text() == "36 of 144 runs"


def test_run_details_have_settings_and_command(opened: Callable[..., "Page"]) -> None:
    page = opened()
    page.locator("#run-search").fill("run_040")
    page.locator("#run-table summary").focus()
    page.keyboard.press("Enter")
    assert "epsilon" in page.locator("#run-table dl").inner_text()
    command = page.locator("#run-table pre").inner_text()
    assert command.startswith("domainwise train --dataset toy --algorithm mat --hparam lr=0.001")
    page.get_by_role("button", name="Copy command").click()
    status = page.locator("#run-table details [role=status]")
    status.get_by_text("Copied").or_(status.get_by_text("Selected")).wait_for()


def test_tables_and_plots_without_javascript(opened: Callable[..., "Page"]) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator(".view:visible").count() == 1
    assert page.locator(".view:visible table.sortable").first.is_visible()
    assert page.locator(".view:visible svg.plot").first.is_visible()
    assert page.locator("button:visible, input:visible").count() == 0
    assert page.locator("noscript p").is_visible()
    page.locator(".view:visible summary").first.click()
    assert page.locator(".view:visible details table").first.is_visible()


def test_print_is_light_and_has_no_controls(opened: Callable[..., "Page"]) -> None:
    page = opened(color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 35, 48)"
    assert page.locator(".view:visible table.sortable").first.is_visible()
    assert page.locator(".switch, .filters, .pager, .skip").first.is_hidden()
    assert page.locator(".scroll").first.evaluate("element => getComputedStyle(element).overflowX") == "visible"
    assert len(page.pdf()) > 10_000


def test_reduced_motion(opened: Callable[..., "Page"]) -> None:
    page = opened(reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
