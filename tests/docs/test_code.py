"""The code in README and docs runs as it stands there, some of it next to a folder with photos."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from easy_images import write_easy_images

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


def test_readme_opens_with_a_diff_of_three_lines_that_trains() -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = diff.splitlines()
    added = [line for line in lines if line.startswith("+")]
    assert len(added) == 3
    assert not any(line.startswith("-") for line in lines)

    def trained(code: list[str]) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
        loader = [(torch.rand(8, 3, 32, 32), torch.randint(2, (8,)), torch.randint(3, (8,))) for _ in range(3)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        exec("\n".join(code), {"model": model, "loader": loader, "optimizer": optimizer, "F": F})
        return model[1].weight.detach()

    before = trained([line[1:] for line in lines if line.startswith(" ")])
    after = trained([line[1:] for line in lines if line])
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)


@pytest.mark.parametrize("block", BLOCKS)
def test_code_in_the_docs_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    if '"photos/"' in block:
        write_easy_images(tmp_path / "photos", count=20)
    torch.manual_seed(0)
    exec(compile(block, "docs", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text()), target


def anchors(text: str) -> set[str]:
    """As a page of markdown names its headings: in lower case, without punctuation, joined by hyphens."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
