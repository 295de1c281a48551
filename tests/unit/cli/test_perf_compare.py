"""`slotmq perf compare`: stored results side by side, as text and as a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.main import main
from tests.perf_results import result


def kept(folder: Path, name: str, product: str, per_s: int) -> str:
    """Return the path of a stored result."""
    path = folder / name
    path.write_text(result(product, per_s).to_json())
    return str(path)


def test_kept_results_are_set_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each result is a column, and each value is followed by its ratio to the first result."""
    files = [kept(tmp_path, f"{product}.json", product, rate) for product, rate in (("A", 1000), ("B", 2500))]
    assert main(["perf", "compare", *files, "--plot", str(tmp_path / "page.html")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["A", "B"]
    assert ["published", "1,000/s", "2,500/s", "2.5x"] in lines
    assert ["broker", "CPU/message", "500", "us", "200", "us", "0.4x"] in lines
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "throughput: A / B" in page


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot read {}: No such file or directory"),
        (b"{}", "{}: not a document of format slotmq-perf/1"),
        (b"\xff", "{}: not JSON: not UTF-8"),
    ],
)
def test_what_is_no_result_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, problem: str
) -> None:
    """An invalid result is reported with its file name and exit code 2."""
    path = tmp_path / "x.json"
    if text is not None:
        path.write_bytes(text)
    assert main(["perf", "compare", str(path)]) == 2
    assert capsys.readouterr().err == f"slotmq: {problem.format(path)}\n"


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unwritable page is reported with exit code 2."""
    target = tmp_path / "missing" / "page.html"
    assert main(["perf", "compare", kept(tmp_path, "a.json", "A", 1000), "--plot", str(target)]) == 2
    assert capsys.readouterr().err == f"slotmq: cannot write {target}: No such file or directory\n"
