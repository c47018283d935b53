"""Backbone and batch norm mode below a table, and the warning if its runs differ in them."""

from pathlib import Path

import pytest

from domainwise.reports import FORMATS, report, write_page
from run_folders import DOMAINBED_2021, DOMAINBED_2024, write_domainbed_run, write_run

OLD = "resnet50 (IMAGENET1K_V1, frozen batch norm)"
NEW = "timm:resnet50.ram_in1k (pretrained, live batch norm)"
OUR_OLD = {"network": "resnet50", "weights": "IMAGENET1K_V1", "batch_norm": "frozen"}
OUR_NEW = {"network": "timm:resnet50.ram_in1k", "weights": "pretrained", "batch_norm": "live"}
PACS = ("art_painting", "cartoon", "photo", "sketch")


def backbones_below(folder: Path, selection: str = "training_domain") -> list[str]:
    """Return the footnotes on backbones of all tables."""
    tables = report([folder], selections=[selection]).tables
    return [note for table in tables for note in table.footnotes if note.startswith("Backbone")]


def test_sweep_of_domainbed_names_its_backbone(tmp_path: Path) -> None:
    for tested in range(4):
        write_domainbed_run(tmp_path / f"erm{tested}", "ERM", DOMAINBED_2021, tested=tested)
        write_domainbed_run(tmp_path / f"irm{tested}", "IRM", DOMAINBED_2021, tested=tested)
    assert backbones_below(tmp_path) == [f"Backbone: {OLD}."]
    assert report([tmp_path]).notes == ()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (OUR_OLD, OLD),
        (OUR_NEW, NEW),
        ({"network": "small_cnn", "weights": None, "batch_norm": None}, "small_cnn"),
        (
            {"network": "resnet18", "weights": "none", "batch_norm": "live"},
            "resnet18 (no pretrained weights, live batch norm)",
        ),
        (
            {"network": "resnet18", "weights": f"mine.pt sha256:{'0123456789abcdef' * 4}", "batch_norm": "frozen"},
            "resnet18 (mine.pt sha256:01234567, frozen batch norm)",
        ),
    ],
)
def test_our_runs_name_theirs(tmp_path: Path, settings: dict[str, str | None], expected: str) -> None:
    write_run(tmp_path / "run", "erm", "art", **settings)
    assert backbones_below(tmp_path) == [f"Backbone: {expected}."]


def test_runs_that_recorded_no_backbone(tmp_path: Path) -> None:
    write_run(tmp_path / "erm", "erm", "art", network=None)
    assert backbones_below(tmp_path) == []
    (tmp_path / "erm" / "config.json").write_text("damaged")
    assert backbones_below(tmp_path) == []
    write_run(tmp_path / "mat", "mat", "art", **OUR_OLD)
    assert backbones_below(tmp_path) == [f"Backbones: unknown for erm; {OLD} for mat."]
    (note,) = report([tmp_path]).notes
    assert note.startswith(f"the settings of {tmp_path / 'erm'} are not known: ")


@pytest.mark.parametrize(("hparams", "settings"), [(DOMAINBED_2021, OUR_OLD), (DOMAINBED_2024, OUR_NEW)])
def test_same_backbone_in_domainbed_and_here_is_no_mixture(
    tmp_path: Path, hparams: dict[str, object], settings: dict[str, str]
) -> None:
    write_domainbed_run(tmp_path / "theirs" / "run", "ERM", hparams)
    write_run(tmp_path / "ours", "mat", PACS[0], dataset="pacs", domains=PACS, seeding="domainbed", **settings)
    assert len(backbones_below(tmp_path)) == 1
    assert report([tmp_path]).notes == ()


def test_mnist_of_both_is_no_mixture(tmp_path: Path) -> None:
    domains = ("+90%", "+80%", "-90%")
    write_domainbed_run(tmp_path / "old", "ERM", DOMAINBED_2021, dataset="ColoredMNIST", domains=3)
    write_domainbed_run(tmp_path / "new", "IRM", DOMAINBED_2024, dataset="ColoredMNIST", domains=3)
    write_run(tmp_path / "ours", "mat", "+90%", dataset="colored_mnist", domains=domains, network="mnist_cnn")
    assert backbones_below(tmp_path) == ["Backbone: mnist_cnn."]
    assert report([tmp_path]).notes == ()


def test_old_and_new_sweeps_of_domainbed(tmp_path: Path) -> None:
    for tested in range(4):
        write_domainbed_run(tmp_path / "2021" / f"a{tested}", "ERM", DOMAINBED_2021, tested=tested)
        write_domainbed_run(tmp_path / "2021" / f"b{tested}", "IRM", DOMAINBED_2021, tested=tested)
        write_domainbed_run(tmp_path / "2024" / f"a{tested}", "Fishr", DOMAINBED_2024, tested=tested)
    assert backbones_below(tmp_path) == [f"Backbones: {OLD} for erm, irm; {NEW} for fishr."]
    assert report([tmp_path]).notes == (
        "runs on pacs have different backbones and batch norm modes, so their numbers are not comparable: "
        f"erm, irm in {tmp_path / '2021'} with {OLD}; fishr in {tmp_path / '2024'} with {NEW}",
    )


def test_runs_that_share_a_folder_are_named_one_by_one(tmp_path: Path) -> None:
    """A sweep that was continued after an update of DomainBed."""
    for tested in range(4):
        write_domainbed_run(tmp_path / f"a{tested}", "ERM", DOMAINBED_2021, tested=tested)
    write_domainbed_run(tmp_path / "b", "IRM", DOMAINBED_2024)
    (note,) = report([tmp_path]).notes
    assert f": erm in {tmp_path / 'a0'}, {tmp_path / 'a1'}, {tmp_path / 'a2'} (+1 more) with {OLD}; " in note
    assert note.endswith(f"; irm in {tmp_path / 'b'} with {NEW}")


def test_one_method_with_both(tmp_path: Path) -> None:
    write_domainbed_run(tmp_path / "2021" / "a", "ERM", DOMAINBED_2021, tested=0)
    write_domainbed_run(tmp_path / "2024" / "a", "ERM", DOMAINBED_2024, tested=1)
    assert backbones_below(tmp_path) == [f"Backbones: {OLD} for erm; {NEW} for erm."]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"freeze_bn": False}, "different batch norm modes,"),
        ({"resnet50_augmix": True}, "different backbones,"),
        # Both ask for a ResNet-18, but the second gets a ResNet-50.
        ({"resnet18": True, "resnet50_augmix": True}, "different backbones,"),
    ],
)
def test_warning_says_what_differs(tmp_path: Path, change: dict[str, bool], difference: str) -> None:
    hparams = DOMAINBED_2021 | {"resnet18": "resnet18" in change}
    write_domainbed_run(tmp_path / "one", "ERM", hparams)
    write_domainbed_run(tmp_path / "two", "IRM", hparams | {"freeze_bn": True} | change)
    (note,) = report([tmp_path]).notes
    assert difference in note


def test_datasets_may_have_different_backbones(tmp_path: Path) -> None:
    write_domainbed_run(tmp_path / "pacs", "ERM", DOMAINBED_2021)
    write_domainbed_run(tmp_path / "mnist", "ERM", DOMAINBED_2021, dataset="RotatedMNIST", domains=6)
    assert backbones_below(tmp_path) == [f"Backbone: {OLD}.", "Backbone: mnist_cnn."]
    assert report([tmp_path]).notes == ()


def test_runs_that_help_to_select_count_only_for_leave_one_out(tmp_path: Path) -> None:
    write_domainbed_run(tmp_path / "one", "ERM", DOMAINBED_2021)
    helper = write_domainbed_run(tmp_path / "two", "ERM", DOMAINBED_2024) / "results.jsonl"
    helper.write_text(helper.read_text().replace('"test_envs": [0]', '"test_envs": [0, 1]'))
    assert backbones_below(tmp_path) == [f"Backbone: {OLD}."]
    assert backbones_below(tmp_path, "leave_one_out") == [f"Backbones: {OLD} for erm; {NEW} for erm."]


def test_unfinished_runs_are_no_mixture(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "erm", "art", **OUR_OLD)
    write_run(tmp_path / "two", "mat", "art", is_done=False, **OUR_NEW)
    assert backbones_below(tmp_path) == [f"Backbone: {OLD}."]
    assert report([tmp_path]).notes == ("1 unfinished run skipped",)


def test_terminal_markdown_and_page_show_both(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "one", "erm", "art", **OUR_OLD)
    write_run(runs / "two", "mat", "art", **OUR_NEW)
    footnote, (warning,) = f"Backbones: {OLD} for erm; {NEW} for mat.", report([runs]).notes
    text, markdown = (FORMATS[name](report([runs])) for name in ("text", "markdown"))
    assert f"  {footnote}\n" in text
    assert text.endswith(f"{warning}\n")
    assert f"- {footnote}\n" in markdown
    assert f"> {warning}" in markdown
    write_page(tmp_path / "page.html", [runs])
    page = (tmp_path / "page.html").read_text()
    assert f"<li>{footnote}</li>" in page
    assert f'<li data-kind="note">{warning}</li>' in page
    assert f"<dt>Networks</dt><dd>{OLD}, {NEW}</dd>" in page
