"""Run docs/tutorial.ipynb in an empty folder and keep its outputs: `python docs/execute_tutorial.py`."""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_name("tutorial.ipynb")


def execute_notebook(folder: Path, parameters: Mapping[str, Any] | None = None) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of its cells, run in `folder`; raises the error of a cell.

    Args:
        parameters: values that replace those of the cell tagged `parameters`.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (first,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    source = first.source
    first.source = "\n".join((source, *(f"{name} = {value!r}" for name, value in (parameters or {}).items())))
    environment = {
        **os.environ,
        "DOMAINWISE_CACHE": str(folder / "cache"),
        # The `domainwise` that belongs to this Python.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    first.source = source
    return notebook


def clean_outputs(notebook: nbformat.NotebookNode) -> None:
    """Drop what differs between machines, times and warnings about missing widgets, and join what was printed."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        printed = "".join(each.text for each in cell.outputs if each.get("name") == "stdout")
        cell.outputs = [each for each in cell.outputs if each.output_type != "stream"]
        if printed:
            cell.outputs.insert(0, nbformat.v4.new_output("stream", text=printed))
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        executed = execute_notebook(Path(name))
    clean_outputs(executed)
    nbformat.write(executed, NOTEBOOK)
