"""`slotmq pipeline`: its jobs are imported when they run."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType
from typing import Any

import pytest

from broker.cli import pipeline
from broker.cli.main import main
from broker.cli.parser import add_command


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the job `archive`, and provide its received arguments."""
    given: list[Any] = []

    def run(arguments: argparse.Namespace) -> int:
        given.append(arguments.lake)
        return 3

    def add(commands: Any) -> None:
        command = add_command(commands, "archive", "of the tests")
        command.add_argument("--lake", required=True)
        command.set_defaults(run=run)

    module = ModuleType("broker.pipeline.jobs.archive")
    module.add_archive = add  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "broker.pipeline.jobs.archive", module)
    monkeypatch.setattr(pipeline, "missing_packages", list)
    return given


def test_a_job_gets_its_arguments_and_gives_its_exit_code(job: list[Any]) -> None:
    """The words after a job's name are its arguments, and its code is the exit code."""
    assert main(["pipeline", "archive", "--lake", "here"]) == 3
    assert job == ["here"]


@pytest.mark.parametrize("words", [["archive"], ["archive", "--lake", "x", "--nonsense"], ["nonsense"], []])
def test_wrong_words_are_wrong_usage(words: list[str], job: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown or missing arguments of a job are one line and exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert job == []


def test_a_jobs_help_is_its_own(job: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` after a job's name shows that job's arguments under its full name."""
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "archive", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: slotmq pipeline archive ")
    assert "--lake" in said


def test_help_names_each_job(capsys: pytest.CaptureFixture[str]) -> None:
    """The group's help lists every job without importing any."""
    with pytest.raises(SystemExit):
        main(["pipeline", "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in pipeline.JOBS)


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Spark a job exits with 2 and one line that names the extra."""
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None if name in {"pyspark", "pandas"} else object())
    assert main(["pipeline", "archive", "--lake", "x"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pyspark, pandas" in said
    assert 'pip install ".[spark]"' in said
