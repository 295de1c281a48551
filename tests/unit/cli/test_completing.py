"""Completions that a shell offers at a Tab."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.cli import completion
from broker.cli.completion import FILES, FOLDERS, SHELLS, completions, script_of
from broker.cli.control_client import Unanswered
from broker.cli.main import build_parser, main
from broker.testing import Broker
from tests.broker_process import PACKAGE

HOSTILE = ["$(touch hit)", "a b", "it's", "`touch hit`", "plain", "überholt"]


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """Provide the parser of all commands."""
    return build_parser()


def offered(parser: argparse.ArgumentParser, *words: str) -> list[str]:
    """Return the candidates without their descriptions."""
    return [line.partition("\t")[0] for line in completions(parser, words)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, str, Any]]:
    """Provide what a stub of the broker was asked."""
    seen: list[tuple[Any, str, Any]] = []

    def ask(broker: Any, verb: str, **fields: Any) -> list[dict[str, str]]:
        seen.append((broker, verb, fields.get("vhost")))
        return [{"name": name} for name in ("beta", "alpha", "al\npha")]

    monkeypatch.setattr(completion, "ask", ask)
    return seen


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["he"], ["health"]),
        (["list", "ex"], ["exchanges"]),
        (["list", "queues", "--col"], ["--columns"]),
        (["top", "--sort", "a"], ["ack", "age"]),
        (["--ver"], ["--version"]),
        (["definitions", "import", ""], [FILES]),
        (["backup", ""], [FOLDERS]),
        (["status", "--data-dir", "x"], [FOLDERS]),
        (["status", "--data-dir=x", "--js"], ["--json"]),
        (["perf", "compare", "--pl"], ["--plot"]),
        (["perf", "latency", "--qui"], ["--quiet"]),
        (["pipeline", "arch"], ["archive"]),
        (["completion", "z"], ["zsh"]),
        (["nonsense", ""], []),
        (["publish", "q", "--", "-"], []),
    ],
)
def test_commands_and_options_come_from_the_parsers(
    parser: argparse.ArgumentParser, words: list[str], expected: list[str]
) -> None:
    """Also those of lazily imported commands; an unknown command has none."""
    assert offered(parser, *words) == expected


def test_names_come_from_the_broker(parser: argparse.ArgumentParser, asked: list[tuple[Any, str, Any]]) -> None:
    """The broker that the words name is asked, for the vhost that they name; names that split lines are left out."""
    assert offered(parser, "purge", "") == ["alpha", "beta"]
    assert offered(parser, "delete", "exchange", "--data-dir", "d", "--vhost", "v", "b") == ["beta"]
    assert offered(parser, "user", "delete", "") == ["alpha", "beta"]
    assert offered(parser, "list", "queues", "--vhost", "a") == ["alpha"]
    assert asked == [
        ("data", "list_queues", "/"),
        ("d", "list_exchanges", "v"),
        ("data", "list_users", None),
        ("data", "list_vhosts", None),
    ]


def test_a_broker_that_does_not_answer_offers_nothing(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error is shown in the middle of a line."""

    def ask(*_words: Any, **_fields: Any) -> None:
        raise Unanswered("no broker runs")

    monkeypatch.setattr(completion, "ask", ask)
    assert offered(parser, "purge", "") == []


def test_every_command_can_be_completed(parser: argparse.ArgumentParser, asked: list[tuple[Any, str, Any]]) -> None:
    """Walk all commands: their options and arguments have descriptions that can be shown."""
    groups: list[list[str]] = [[]]
    seen = 0
    while groups:
        path = groups.pop()
        place = completion.CompletionPosition(parser)
        for word in path:
            place.advance(word)
        assert list(place.candidates("-")) or path[:1] == ["health"]
        first = place._arguments[0] if place._arguments else None
        if isinstance(first, argparse._SubParsersAction):
            groups += [[*path, name] for name in first.choices if [*path, name] != ["pipeline"]]
        seen += 1
    assert seen > 80


@pytest.fixture
def shell_words(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Provide the environment of a shell whose `slotmq` asks a broker with queues of hostile names."""
    with Broker(http={"enabled": True}) as broker:
        url = str(broker.server.manage.url())
        for name in HOSTILE:
            assert main(["declare", "queue", name, "--url", url]) == 0
        command = tmp_path / "slotmq"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m broker "$@"\n')
        command.chmod(0o755)
        for shell in SHELLS:
            (tmp_path / shell).write_text(script_of(shell))
        path = f"{tmp_path}:{os.environ['PATH']}"
        yield {**os.environ, "PATH": path, "PYTHONPATH": str(PACKAGE), "SLOTMQ_URL": url, "HOME": str(tmp_path)}


def run_in(shell: str, script: str, environment: dict[str, str]) -> list[str]:
    """Return the lines that a shell prints; it must not run what a name contains."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    home = environment["HOME"]
    done = subprocess.run(
        [found, "-c", script],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert not done.stderr
    assert not (Path(home) / "hit").exists()
    return done.stdout.splitlines()


def test_bash_completes(shell_words: dict[str, str]) -> None:
    """Names are quoted as bash would need them."""
    script = (
        "source ./bash; complete -p slotmq; COMP_WORDS=(slotmq {}); COMP_CWORD={}; _slotmq; "
        "printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    lines = run_in("bash", script.format("purge ''", 2), shell_words)
    assert lines[0] == "complete -F _slotmq slotmq"
    read_back = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(lines[1:])}"], capture_output=True, text=True, check=True
    )
    assert read_back.stdout.splitlines() == sorted(HOSTILE)
    assert run_in("bash", script.format("vhost set-l", 2), shell_words)[1:] == ["set-limits"]


def test_zsh_completes(shell_words: dict[str, str]) -> None:
    """Names are passed to compadd, which quotes them."""
    script = """
    compdef() { print -r -- "compdef $*" }
    compadd() { local name; for name in "${names[@]}"; do print -r -- "$name"; done }
    source ./zsh
    words=(slotmq purge ''); CURRENT=3; _slotmq
    """
    assert run_in("zsh", script, shell_words) == ["compdef _slotmq slotmq", *sorted(HOSTILE)]


def test_fish_completes(shell_words: dict[str, str]) -> None:
    """fish escapes what it inserts."""
    lines = run_in("fish", "source ./fish; complete -C 'slotmq purge '", shell_words)
    assert sorted(line.partition("\t")[0] for line in lines) == sorted(HOSTILE)
