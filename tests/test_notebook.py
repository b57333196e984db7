"""The notebook in examples/ runs from its first cell to its last, in a kernel, as a user would run it."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import dapfl

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_federation.ipynb"


@pytest.mark.processes
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(dapfl.__file__).parents[1]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {
        kind for cell in notebook.cells for out in cell.get("outputs", ()) for kind in out.get("data", ())
    }
    assert {"image/png", "text/html"} <= shown  # figures and frames
    said = "".join(
        out.text
        for cell in notebook.cells
        for out in cell.get("outputs", ())
        if out.output_type == "stream" and out.name == "stderr"
    )
    assert "Keys: 8/8" in said  # as plain text, not each line in a display of its own
    assert len(list(tmp_path.glob("runs/rings-*/model.npz"))) == 2  # run anew each time: it can be run again


def test_the_notebook_is_kept_without_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
