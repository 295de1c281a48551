"""The division of the tests between the two processes of `make test`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.deadline import DEADLINE_S

HERE = Path(__file__).parents[2]
HOOKS = """
from tests.conftest import (
    pytest_collection_modifyitems, pytest_xdist_auto_num_workers, pytest_xdist_make_scheduler
)
"""
TEST = """
def test_it(worker_id):
    with open({log!r}, "a") as log:
        print({name!r}, worker_id, file=log)
"""
FILES = [
    "tests/a/test_one.py",
    "tests/manage/page/test_one.py",
    "tests/manage/page/test_two.py",
    "tests/pipeline/test_one.py",
    "tests/pipeline/test_two.py",
]


def run(folder: Path, *arguments: str) -> list[tuple[str, str]]:
    """Run the files above with the hooks of this project's tests; return file and process of each, in their order."""
    log = folder / "log"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(TEST.format(log=str(log), name=name))
    (folder / "conftest.py").write_text(HOOKS)
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers = slow\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--import-mode=importlib", *arguments]
    environment = {"PYTHONPATH": str(HERE), "PATH": os.environ["PATH"]}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=DEADLINE_S)
    name_and_process = [line.split() for line in log.read_text().splitlines()]
    return [(name, process) for name, process in name_and_process]


def test_what_shares_a_jvm_or_a_browser_runs_in_one_process(tmp_path: Path) -> None:
    """All files of such a folder run in one process, and the others wherever there is room."""
    process = dict(run(tmp_path))
    assert sorted(process) == FILES
    assert process["tests/pipeline/test_one.py"] == process["tests/pipeline/test_two.py"]
    assert process["tests/manage/page/test_one.py"] == process["tests/manage/page/test_two.py"]
    assert set(process.values()) == {"gw0", "gw1"}


def test_a_named_file_runs_without_further_processes(tmp_path: Path) -> None:
    """A single file does not wait for the start of two processes."""
    assert run(tmp_path, FILES[0]) == [(FILES[0], "master")]
