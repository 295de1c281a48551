"""The requests of the commands to the broker, and their output."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.cli import listing
from broker.cli.main import build_parser
from tests.unit.cli.conftest import Asked
from tests.unit.cli.exit_code import code_of


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put text on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.mark.parametrize(
    ("words", "verb", "arguments"),
    [
        (["vhost", "add", "v", "--description", "d"], "add_vhost",
         {"name": "v", "description": "d", "default_queue_type": None}),
        (["vhost", "add", "v", "--default-queue-type", "quorum"], "add_vhost",
         {"name": "v", "description": "", "default_queue_type": "quorum"}),
        (["vhost", "delete", "v"], "delete_vhost", {"name": "v"}),
        (["user", "delete", "u"], "delete_user", {"name": "u"}),
        (["user", "set", "u", "--tag", "a", "--tag", "b"], "set_user", {"name": "u", "tags": ["a", "b"]}),
        (["user", "set", "u", "--no-tags"], "set_user", {"name": "u", "tags": []}),
        (["permission", "set", "u", "c", "w", "r"], "set_permission",
         {"user": "u", "vhost": "/", "configure": "c", "write": "w", "read": "r"}),
        (["permission", "set-topic", "u", "x", "w", "r", "--vhost", "v"], "set_topic_permission",
         {"user": "u", "vhost": "v", "exchange": "x", "write": "w", "read": "r"}),
        (["permission", "delete", "u"], "delete_permission", {"user": "u", "vhost": "/"}),
        (["permission", "delete", "u", "--topic", "x"], "delete_topic_permission",
         {"user": "u", "vhost": "/", "exchange": "x"}),
        (["policy", "set", "p", "^a", '{"max-length": 1}', "--priority", "-2", "--apply-to", "queues", "--operator"],
         "set_policy", {"name": "p", "vhost": "/", "pattern": "^a", "definition": {"max-length": 1}, "priority": -2,
                        "apply_to": "queues", "operator": True}),
        (["policy", "delete", "p"], "delete_policy", {"name": "p", "vhost": "/", "operator": False}),
        (["delete", "exchange", "x", "--if-unused"], "delete_exchange",
         {"exchange": "x", "vhost": "/", "if_unused": True}),
        (["close-connection", "a -> b", "--reason", "r"], "close_connection", {"name": "a -> b", "reason": "r"}),
    ],
)  # fmt: skip
def test_command_asks_for_what_it_says(asked: Asked, words: list[str], verb: str, arguments: dict[str, Any]) -> None:
    """Each word of a command becomes its argument of the request."""
    assert code_of(*words) == 0
    assert (asked.verb, asked.arguments) == (verb, arguments)


@pytest.mark.parametrize("kind", listing.COLUMNS)
def test_each_kind_is_listed_by_its_verb(asked: Asked, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A listing has the columns that its help names, or the selected ones."""
    asked.answer = [{listing.COLUMNS[kind][0]: "here", "other": 3}]
    assert code_of("list", kind, "--vhost", "v") == 0
    assert (asked.verb, asked.arguments) == ("list_" + kind.replace("-", "_"), {"vhost": "v"})
    assert capsys.readouterr().out == "here" + "\t" * (len(listing.COLUMNS[kind]) - 1) + "\n"
    assert code_of("list", kind, "--columns", f"other,{listing.COLUMNS[kind][1]}") == 0
    assert capsys.readouterr().out == "3\t\n"
    assert code_of("list", kind, "--columns", "other,none") == 2
    assert capsys.readouterr().err.startswith("slotmq: there is no column 'none': there are ")


def test_rates_and_bytes_are_asked_for_when_they_are_shown(asked: Asked) -> None:
    """Computing rates and bytes may take half a second, so they are requested only for shown columns."""
    asked.answer = [{"name": "q", "ack_rate": 0.0, "message_bytes_ready": 3}]
    for shown, part in (("name,ack_rate", "rates"), ("message_bytes_ready", "bytes")):
        assert code_of("list", "queues", "--columns", shown) == 0
        assert asked.arguments == {"vhost": None, part: True}


def test_password_comes_from_standard_input(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line end does not belong to the password; every other character does."""
    say(monkeypatch, " pass word\r\n")
    assert code_of("user", "add", "u", "--password-stdin", "--tag", "administrator") == 0
    assert asked.arguments == {"name": "u", "password": " pass word", "tags": ["administrator"]}


@pytest.mark.parametrize(
    ("words", "said", "problem"),
    [
        (["user", "add", "u", "--password-stdin"], "\n", "a password must not be empty"),
        (["user", "add", "u"], "secret\n", "no terminal to ask for a password: use --password-stdin"),
        (["user", "add", "u", "secret"], "", "unrecognized arguments: secret"),
        (["user", "set", "u"], "", "nothing to change"),
        (["policy", "set", "p", "^a", "{max-length: 1}"], "", "the definition is not valid JSON"),
        (["definitions", "import", "missing.json"], "", "missing.json: cannot be read: No such file or directory"),
        (["definitions", "import", "-"], "{", "-: not valid JSON"),
        (["definitions", "import", "-"], '{"a": NaN}', "-: not valid JSON: NaN is not a number"),
        (["policy", "set", "p", "^a", "[" * 100_000], "", "the definition is not valid JSON: nested too deeply"),
        (["user", "add", "u", "--password-stdin"], "x" * (1 << 16) + "y\n", "a password has at most 65536 bytes"),
        (["purge", "q", "a\nb\x1b[31m"], "", r"unrecognized arguments: a\nb\x1b[31m"),
        (["list", "bogus"], "", "invalid choice"),
        (["delete", "user", "u"], "", "invalid choice"),
    ],
)
def test_wrong_usage_asks_nothing_and_is_2(
    asked: Asked, words: list[str], said: str, problem: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Wrong usage is one line on standard error, and nothing is sent to the broker."""
    say(monkeypatch, said)
    assert code_of(*words) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert asked.verb == ""


def test_import_sends_the_document_and_counts(asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Imported entries are counted, skipped ones are listed."""
    file = tmp_path / "d.json"
    file.write_text('{"queues": []}')
    asked.answer = {
        "imported": {"queues": 3, "users": 0, "topic_permissions": 1, "parameters": 1},
        "made": {"queues": 2, "topic_permissions": 1},
        "changed": {},
        "present": {"queues": 1, "users": 0},
        "without_effect": ["parameter shovel 's\n' in vhost 'v'"],
        "skipped": ["bindings[0]: why"],
    }
    assert code_of("definitions", "import", str(file), "--vhost", "v") == 0
    assert (asked.arguments["definitions"], asked.arguments["vhost"]) == ({"queues": []}, "v")
    said, problems = capsys.readouterr()
    assert said.splitlines() == [
        "made: 2 queues, 1 topic permission",
        "there already: 1 queue",
        "without effect: parameter shovel 's\\n' in vhost 'v'",
    ]
    assert problems == "slotmq: skipped bindings[0]: why\n"
    assert code_of("definitions", "import", str(file), "--json") == 0
    assert json.loads(capsys.readouterr().out) == asked.answer


def test_export_is_for_its_owner_alone(asked: Asked, tmp_path: Path) -> None:
    """Only the owner may read the file, because it contains password hashes."""
    asked.answer = {"users": [{"name": "é"}]}
    file = tmp_path / "d.json"
    assert code_of("definitions", "export", str(file)) == 0
    assert json.loads(file.read_text(encoding="utf-8")) == asked.answer
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("words", [["serve", "--help"], ["serve", "--bogus"], ["serve", "--port", "x"], ["serve", "y"]])
def test_serve_says_the_same_without_the_other_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A start imports only `serve`; its help and its errors are the same as with all commands."""
    said = []
    for command in ("", "serve"):
        with pytest.raises(SystemExit) as ended:
            build_parser(command).parse_args(words)
        said.append((ended.value.code, capsys.readouterr()))
    assert said[0] == said[1]


def test_every_command_has_help() -> None:
    """`slotmq --help` lists each command with a description."""
    text = build_parser().format_help()
    for (
        name
    ) in "serve health status list slots purge delete peek close-connection user vhost permission policy".split():
        assert f"\n    {name}" in text
