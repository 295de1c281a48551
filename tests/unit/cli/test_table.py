"""Rows on a terminal, in a pipe, and as JSON."""

import json
import sys
from typing import Any

import pytest

from broker.cli.table import cell, counted, print_rows

ROWS: list[dict[str, Any]] = [
    {"name": "q", "messages": 12, "arguments": {"x-max-length": 5}, "durable": True, "policy": None},
    {"name": "long name", "messages": 0, "arguments": {}, "durable": False, "policy": "p"},
]
COLUMNS = ("name", "messages", "durable", "policy", "arguments")


def test_terminal_has_aligned_columns_under_their_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal gets a header, and cells aligned below it."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_rows(ROWS, COLUMNS, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "name       messages  durable  policy  arguments",
        'q          12        true             {"x-max-length":5}',
        "long name  0         false    p",
    ]


def test_pipe_has_nothing_but_cells(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets one row per line with tabs between columns, also around empty cells."""
    print_rows(ROWS, COLUMNS, as_json=False)
    assert capsys.readouterr().out.splitlines() == ['q\t12\ttrue\t\t{"x-max-length":5}', "long name\t0\tfalse\tp\t"]


def test_json_has_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON contains every key, whatever columns are selected."""
    print_rows(ROWS, ("name",), as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\tb\nc", "a\\tb\\nc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("é 日本", "é 日本"),
        (["a", "b"], "a,b"),
        (["\n"], "\\n"),
        ({}, ""),
    ],
)
def test_cell_is_one_piece(value: Any, shown: str) -> None:
    """Line breaks and control characters in a name are escaped."""
    assert cell(value) == shown


@pytest.mark.parametrize(
    ("count", "plural", "text"),
    [
        (1, "messages", "1 message"),
        (0, "messages", "0 messages"),
        (1, "policies", "1 policy"),
        (2, "queues", "2 queues"),
    ],
)
def test_one_is_no_plural(count: int, plural: str, text: str) -> None:
    """The noun is singular after one."""
    assert counted(count, plural) == text
