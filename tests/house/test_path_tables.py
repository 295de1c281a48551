"""`tools.house architecture` prints a table of each traced path."""

from pathlib import Path

import pytest

from tools.house import path_tables, paths
from tools.house.tracer import Step


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace every path by a trace through two functions of one file, and back."""
    names = ["Queue.accept", "Queue.accept.<locals>.note", "seal", "Queue.accept"]
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "queue.py").write_text('"""A queue | a row. More of it."""')
    steps = [Step("broker/queue.py", name, outermost=False) for name in names]
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "walk", lambda _name: steps)


@pytest.mark.usefixtures("traced")
def test_a_table_has_each_file_and_function_once() -> None:
    """A row has a file, its functions and the first sentence of its docstring."""
    row = r"| 1 | `queue.py` | `Queue.accept`, `Queue.accept.note`, `seal` | A queue \| a row |"
    assert path_tables.path_table("publish").splitlines()[2:] == [row]
