"""`tools.house architecture` prints a table of each traced path."""

from pathlib import Path

import pytest

from tools.house import path_tables, paths
from tools.house.tracer import Step

SOURCE = '''"""A queue. More of it."""

class Queue:
    def accept(self):
        """Append a message to the queue: `a|b`.

        Cost: O(1).
        """
        def note():
            """Note it"""

def seal(): ...
'''


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace every path by a trace through two functions of one file, and back."""
    names = ["Queue.accept", "Queue.accept.<locals>.note", "seal", "Queue.accept"]
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "queue.py").write_text(SOURCE)
    (tmp_path / "broker" / "__init__.py").write_text('"""A broker."""')
    steps = [Step("broker/queue.py", name, 1, outermost=False) for name in names]
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "walk", lambda _name: steps)


@pytest.mark.parametrize(
    ("rows_max", "rows"),
    [
        (
            3,
            [
                r"| 1 | `queue.py` | `Queue.accept` | Append a message to the queue: `a\|b` |",
                "| 2 | `queue.py` | `Queue.accept.note` | Note it |",
                "| 3 | `queue.py` | `seal` |  |",
            ],
        ),
        (1, ["| 1 | `queue.py` | `Queue.accept`, `Queue.accept.note`, `seal` | A queue |"]),
        (0, ["| 1 | `broker/` | queue 3 | A broker |"]),
    ],
)
@pytest.mark.usefixtures("traced")
def test_a_table_has_each_function_once(rows_max: int, rows: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A short path has a row per function, a longer one per file, and the longest per folder."""
    monkeypatch.setattr(path_tables, "ROWS_MAX", rows_max)
    assert path_tables.path_table("publish").splitlines()[2:] == rows
