"""Names come from folders and untrusted files: none of them becomes markup."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from domainwise.escaping import escape_unprintable
from domainwise.reports.html import Picture, read_page_data, render_page
from domainwise.reports.html.page_data import format_script_json
from hostile_names import HOSTILE_NAMES, RAW
from run_folders import write_run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def page(tmp_path: Path) -> str:
    domains = ("art", HOSTILE, "sketch")
    settings = {"dataset": f"data {HOSTILE}", "domains": domains}
    for name in ("erm", f"my{HOSTILE}"):
        for place, domain in enumerate(domains):
            folder = tmp_path / "<b>runs" / f"{len(name)}-{place}"
            write_run(folder, name, domain, hparams={"<i>": HOSTILE, "epsilon": 0.1 * len(name)}, **settings)
    (tmp_path / "<b>runs" / "plan.jsonl").write_text(
        json.dumps(
            {
                "run": "<u>lost",
                "dataset": "toy",
                "algorithm": HOSTILE,
                "test_domains": [HOSTILE],
                "trial_seed": 0,
                "hparams_seed": 0,
            }
        )
        + "\n"
    )
    pictures = [Picture(HOSTILE, HOSTILE, HOSTILE, png=b"\x89PNG"), Picture("t", "c", HOSTILE, svg="<svg></svg>")]
    return render_page(read_page_data([tmp_path]), title=HOSTILE, pictures=pictures)


def test_no_name_becomes_an_element(page: str) -> None:
    elements = Elements(page).elements
    tags = [tag for tag, _ in elements]
    assert tags.count("script") == 2
    assert tags.count("img") == 1
    assert not {"b", "i", "u"} & set(tags)
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]


def test_names_are_shown(page: str) -> None:
    assert "".join(Elements(page).text).count(HOSTILE) > 5


def test_page_makes_no_network_requests(page: str) -> None:
    links = [
        value or ""
        for _, attributes in Elements(page).elements
        for name, value in attributes.items()
        if name in ("src", "href", "action", "xlink:href", "poster", "srcset")
    ]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(" not in page


def test_run_data_can_be_parsed(page: str) -> None:
    (data,) = re.findall(r'<script type="application/json" id="run-data">(.*?)</script>', page, re.DOTALL)
    rows = json.loads(data)
    assert {row["method"] for row in rows} == {"erm", f"my{HOSTILE}", HOSTILE}
    assert rows[0]["settings"]["<i>"] == HOSTILE


def test_json_cannot_end_its_script() -> None:
    rows = [{"name": "</script><!--\u2028"}]
    assert "<" not in format_script_json(rows)
    assert json.loads(format_script_json(rows)) == rows


def test_ids_are_unique(page: str) -> None:
    ids = [attributes["id"] for _, attributes in Elements(page).elements if "id" in attributes]
    assert len(ids) == len(set(ids)) > 5


def test_tables_have_captions_and_scopes(page: str) -> None:
    elements = Elements(page).elements
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in elements if tag == "th")
    assert [tag for tag, _ in elements].count("caption") == [tag for tag, _ in elements].count("table")
    drawings = [attributes for tag, attributes in elements if tag == "svg" and attributes.get("class") == "plot"]
    assert len(drawings) >= 2 + 3
    assert all(each["role"] == "img" and each["aria-label"] for each in drawings)


def test_a_page_shows_every_name_and_no_raw_character(tmp_path: Path) -> None:
    domains = ("art", "sketch")
    for place, name in enumerate(HOSTILE_NAMES.values()):
        write_run(tmp_path / f"run{place}", name, "art", dataset="data", domains=domains, hparams={"note": name})
        write_run(tmp_path / f"other{place}", "erm", name, dataset=f"data {name}", domains=(name, "sketch"))
    page = render_page(read_page_data([tmp_path]), title="".join(HOSTILE_NAMES.values()))
    assert page.encode()
    assert not [character for character in RAW if character in page]
    parsed = Elements(page)
    assert [tag for tag, _ in parsed.elements].count("script") == 2
    text = "".join(parsed.text)
    for name in HOSTILE_NAMES.values():
        assert escape_unprintable(name, keep="\n\t") in text
    rows = json.loads(re.findall(r'id="run-data">(.*?)</script>', page, re.DOTALL)[0])
    # Records cannot hold a name that is not UTF-8; it is escaped when they are read.
    names = [
        re.sub("[\ud800-\udfff]", lambda match: escape_unprintable(match[0]), name) for name in HOSTILE_NAMES.values()
    ]
    assert {row["method"] for row in rows} == {"erm", *names}
