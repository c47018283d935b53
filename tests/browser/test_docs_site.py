"""The docs site in a real browser: it fits wide and small screens, its search finds things, its pictures appear."""

import functools
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from docs_site import build_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAGES = (
    "index.html",
    "tutorial.html",
    "which_method.html",
    "gallery.html",
    "methods.html",
    "methods/mat.html",
    "averaging.html",
    "results/structured.html",
    "api/training.html",
    "cli.html",
)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    site = build_site(tmp_path_factory)
    assert site.code == 0, site.log
    handler = functools.partial(_Quiet, directory=str(site.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def opened(browser: "Browser", address: str) -> Iterator[Callable[..., "Page"]]:
    """Open pages of the site; an error, or a request to another host, fails the test."""
    contexts: list[Any] = []
    problems: list[str] = []

    def open_page(width: int, **settings: Any) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.append(request.url) if is_foreign(request.url, address) else None)
        page.on("response", lambda response: problems.append(response.url) if response.status >= 400 else None)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def is_foreign(url: str, address: str) -> bool:
    return not url.startswith((address, "data:", "blob:"))


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen(opened: Callable[..., "Page"], address: str, width: int) -> None:
    page = opened(width)
    for name in PAGES:
        page.goto(f"{address}/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_wide_tables_scroll_inside_on_a_phone(opened: Callable[..., "Page"], address: str) -> None:
    page = opened(390, has_touch=True)
    page.goto(f"{address}/methods.html")
    box = page.locator(".md-typeset__table", has_text="sma - none").first
    wrapper = box.locator("xpath=..")
    assert wrapper.evaluate("element => element.scrollWidth > element.clientWidth")
    wrapper.evaluate("element => element.scrollTo(150, 0)")
    assert wrapper.evaluate("element => element.scrollLeft") == 150


@pytest.mark.parametrize("width", [1280, 390])
def test_search_finds_a_method(opened: Callable[..., "Page"], address: str, width: int) -> None:
    page = opened(width)
    page.goto(f"{address}/index.html")
    if width < 1000:
        page.locator("label.md-header__button[for=__search]").click()
    search(page, "MAT", leads_to="methods/mat.html")


def test_search_works_from_disk(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((build_site(tmp_path_factory).folder / "index.html").as_uri())
    search(page, "MAT", leads_to="methods/mat.html")
    page.close()


def search(page: "Page", words: str, leads_to: str) -> None:
    """Search until a result leads there; the results change while the words are typed."""
    page.locator(".md-search__input").click()
    page.keyboard.type(words)
    page.locator(f".md-search-result__link[href*='{leads_to}']").first.wait_for(state="visible")


def test_the_tutorial_shows_its_pictures(opened: Callable[..., "Page"], address: str) -> None:
    page = opened(390)
    page.goto(f"{address}/tutorial.html")
    pictures = page.locator(".jupyter-wrapper img")
    assert pictures.count() == 3
    for place in range(3):
        width, natural = pictures.nth(place).evaluate("image => [image.clientWidth, image.naturalWidth]")
        assert natural > 100
        assert 100 < width <= 390


def test_links_of_the_tutorial_lead_to_pages(opened: Callable[..., "Page"], address: str) -> None:
    page = opened(1280)
    page.goto(f"{address}/tutorial.html")
    page.locator("a", has_text="what they mean").click()
    page.wait_for_url("**/data_shift.html")
    assert page.locator("h1").inner_text().startswith("How far apart the domains are")


def test_dark_mode(opened: Callable[..., "Page"], address: str) -> None:
    def background(scheme: str) -> str:
        page = opened(1280, color_scheme=scheme)
        page.goto(f"{address}/index.html")
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert background("light") == "rgb(255, 255, 255)" != background("dark")
