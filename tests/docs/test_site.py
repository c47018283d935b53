"""The docs site builds without warnings, has every public name, command and method, and loads nothing foreign."""

import ast
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import domainwise
from docs_site import Site, build_site
from domainwise.algorithms import ALGORITHMS
from domainwise.cli import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return build_site(tmp_path_factory)


def read(site: Site, page: str) -> str:
    return (site.folder / page).read_text()


def test_the_strict_build_has_no_warnings(site: Site) -> None:
    assert site.code == 0, site.log
    assert not re.findall(r"^(?:WARNING|ERROR).*", site.log, re.MULTILINE)


def test_the_api_reference_has_every_public_name(site: Site) -> None:
    overview = read(site, "api/domainwise.html")
    for name in domainwise.__all__:
        link = re.search(rf'href="([a-z]*\.?[a-z]*)#([\w.]+)"><code>{name}</code>', overview)
        assert link is not None, f"{name} is not in the overview of the API"
        page = read(site, f"api/{link[1] or 'domainwise.html'}")
        assert f'id="{link[2]}" class="doc doc-heading"' in page, f"{name} is not documented at {link[1]}"


def list_imports() -> set[str]:
    """Return the names that code in the docs imports from domainwise."""
    blocks = [
        block
        for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    for cell in json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%%"):
            blocks.append(re.sub(r"^%.*", "", source, flags=re.MULTILINE))
    return {
        alias.name
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("domainwise")
        for alias in node.names
    }


def test_the_api_reference_has_what_the_docs_import(site: Site) -> None:
    pages = "".join(page.read_text() for page in (site.folder / "api").glob("*.html"))
    documented = set(re.findall(r'id="domainwise[\w.]*\.(\w+)" class="doc doc-heading"', pages))
    methods = {method.__name__ for method in ALGORITHMS.values()}  # have cards instead
    imports = list_imports()
    assert {"run_sweep_until_decided", "plot_perturbation", "judge_differences"} <= imports
    assert imports - methods - documented == set()


def test_settings_have_their_defaults_and_descriptions(site: Site) -> None:
    text = re.sub(r"<[^>]+>", "", read(site, "api/training.html"))
    assert "setting(" not in text
    assert re.search(r"sam_radius:\s*float\s*=\s*0\.05\s+Radius of SAM and SAGM \(rho\)\.", text)


def test_the_command_reference_has_every_command_and_option(site: Site) -> None:
    page = read(site, "cli.html")
    names = [name.replace("_", "-") for name in COMMANDS]
    for name in (*names, "sweep status", "data shift"):
        assert f'id="domainwise-{name.replace(" ", "-")}"' in page
    train = page.split('id="domainwise-train"')[1].split("<h2")[0]
    assert "<code>--keep-perturbations</code>" in train
    assert "<code>silhouettes</code>" in train


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_card_is_in_the_navigation(site: Site, name: str) -> None:
    navigation = re.findall(r'<a href="([^"]+)" class="md-nav__link">', read(site, "methods.html"))
    assert f"methods/{name}.html" in navigation


def test_the_landing_page_shows_the_readme(site: Site) -> None:
    page = read(site, "index.html")
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    text = re.sub(r"<[^>]+>", "", page).replace("&quot;", '"')
    assert all(line in text for line in diff.splitlines() if line.startswith("+"))
    assert 'src="demo.png"' in page


class Loads(HTMLParser):
    """Collects what a browser would request for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.urls.append(values.get("src") or "")
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.urls.append(values.get("href") or "")


def test_no_page_loads_anything_from_another_host(site: Site) -> None:
    pages = [*site.folder.rglob("*.html")]
    assert len(pages) > 80
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.urls
        assert [url for url in loads.urls if re.match(r"(?:https?:)?//", url)] == [], page.name
    for sheet in site.folder.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet.name


def test_files_that_are_missing_are_not_linked(site: Site) -> None:
    """MkDocs checks links in Markdown; this also covers the notebook, HTML and generated pages."""
    for page in site.folder.rglob("*.html"):
        for target in re.findall(r'<(?:a|img)[^>]* (?:href|src)="([^"#?]+)', page.read_text()):
            if not re.match(r"\w+:|//|/", target):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
