"""The tutorial runs from start to end in an empty folder, and shows what its text promises."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    pytest.importorskip("nbclient", reason="needs nbclient, to run notebooks")
    folder = tmp_path_factory.mktemp("tutorial")
    execute = runpy.run_path(str(ROOT / "docs" / "execute_tutorial.py"))["execute_notebook"]
    return folder, execute(folder, {"steps": 4, "trials": 1}).cells


def show(cell: dict) -> str:
    """Return all text that a cell printed or displayed."""
    outputs = cell.get("outputs", [])
    return "".join(each.get("text", "") + each.get("data", {}).get("text/markdown", "") for each in outputs)


def find(cells: list[dict], code: str) -> dict:
    (cell,) = (each for each in cells if each["cell_type"] == "code" and code in each["source"])
    return cell


def count_pictures(cells: list[dict]) -> int:
    return sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))


def test_outputs_show_what_the_text_promises(executed: tuple[Path, list[dict]]) -> None:
    folder, cells = executed
    assert "all 450 images can be read" in show(find(cells, "data check"))
    shift = show(find(cells, "measure_domain_shift("))
    assert all(f"{place:8} diversity" in shift for place in ("harbour", "market", "station"))
    table = show(find(cells, "write_report("))
    assert "| method | harbour | market | station | Avg |" in table
    assert "| mat |" in table
    assert "inconclusive" in table  # one trial never decides
    assert "MAT is above ERM: inconclusive" in show(find(cells, "write_page("))
    assert "</html>" in (folder / "compare.html").read_text()
    assert count_pictures(cells) == 3
    predictions = show(find(cells, "predict_images(")).splitlines()
    assert len(predictions) == 8
    assert all(line.startswith("new_images/elsewhere/") for line in predictions)
    assert (folder / "runs" / "final" / "best.safetensors").exists()


def test_the_exported_model_predicts_the_same(executed: tuple[Path, list[dict]]) -> None:
    folder, cells = executed
    lines = show(find(cells, "export_model(")).splitlines()
    assert len(lines) == 2
    for line in lines:
        exported, before = (part.strip(" []") for part in line.split(".png")[1].split("as before:"))
        assert [float(each) for each in exported.split()] == pytest.approx(
            [float(each) for each in before.split()], abs=0.002
        )
    assert (folder / "model.onnx").exists()


def test_the_stored_notebook_is_small_complete_and_from_no_particular_machine() -> None:
    text = NOTEBOOK.read_text()
    assert len(text) < 400_000
    assert not any(trace in text for trace in ("/home/", "/work/", "/tmp/", "/root/", "Traceback"))
    cells = json.loads(text)["cells"]
    assert count_pictures(cells) == 3
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
