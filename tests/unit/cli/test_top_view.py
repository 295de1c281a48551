"""The lines of `slotmq top`, and what its keys do."""

from __future__ import annotations

import os
from typing import Any

import pytest

from broker.cli.top_view import BOLD, DIM, PLAIN, RED, REVERSE, TopView

SIZE = os.terminal_size((110, 10))


def row(name: str, **fields: Any) -> dict[str, Any]:
    """Return the row of a queue."""
    row = {"vhost": "/", "name": name, "state": "running", "ready": 0, "unacked": 0, "consumers": 0}
    return {**row, "publish": 0.0, "deliver": 0.0, "ack": 0.0, "age": None, **fields}


def answer(*rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return what the broker answers."""
    totals = {
        name: sum(row[name] for row in rows) for name in ("publish", "deliver", "ack", "ready", "unacked", "consumers")
    }
    told = {"queues": list(rows), "matching": len(rows), "totals": totals, "connections": 3, "alarms": []}
    return {**told, "vhosts": ["/", "other"], **fields}


def plain(lines: list[str]) -> list[str]:
    """Return lines without their styles."""
    for style in (BOLD, DIM, PLAIN, RED, REVERSE):
        lines = [line.replace(style, "") for line in lines]
    return [line.rstrip() for line in lines]


def test_a_queue_is_a_line() -> None:
    """Rates, lengths, age and consumers stand under their names."""
    view = TopView("ready", "", None, reverse=False)
    view.update(
        answer(
            row("orders", publish=1234.5, deliver=1000.0, ack=999.0, ready=12345, unacked=7, age=3725.0, consumers=2),
            row("late\x1b[31m", vhost="other", ready=1, age=5.25, state="paused"),
        )
    )
    lines = plain(view.lines(SIZE))
    assert lines[0] == "SlotMQ  2 queues in all vhosts, 3 connections"
    assert lines[1] == "publish 1,234.5/s  deliver 1,000.0/s  ack 999.0/s  ready 12,346  unacked 7  consumers 2"
    assert lines[3].split() == ["QUEUE", "PUBLISH/s", "DELIVER/s", "ACK/s", "READY↓", "UNACKED", "AGE", "CONSUMERS"]
    assert lines[4].split() == ["orders", "1,234.5", "1,000.0", "999.0", "12,345", "7", "1h02m", "2"]
    assert lines[5].split() == ["other:late\\x1b[31m", "·", "·", "·", "1", "0", "5.2s", "paused"]
    assert len(lines) == SIZE.lines
    assert lines[-1].startswith("q quit")


@pytest.mark.parametrize("size", [(20, 3), (80, 24), (300, 60), (1, 1)])
def test_the_lines_fit_the_terminal(size: tuple[int, int]) -> None:
    """No line is wider than the terminal, and none is too many."""
    view = TopView("publish", "", None, reverse=False)
    view.update(answer(*(row(f"{'long' * 60}{number}") for number in range(100))))
    lines = plain(view.lines(os.terminal_size(size)))
    assert len(lines) == size[1]
    assert all(len(line) <= size[0] for line in lines)


def test_keys_change_what_is_asked() -> None:
    """Sorting, order, filter, vhost and scrolling are the broker's work; a pause asks nothing."""
    view = TopView("publish", "", None, reverse=False)
    view.update(answer(*(row(str(number)) for number in range(5)), matching=100))
    assert view.press("right")
    assert (view.request()["by"], view.changed) == ("deliver", True)
    view.press("r")
    assert view.request()["reverse"]
    for key in "/Or\x7fx\r":
        view.press(key)
    assert view.request()["filter"] == "Ox"
    view.press("v")
    assert view.request()["vhost"] == "/"
    view.press("page down")
    view.press("up")
    assert view.request()["offset"] == 9
    view.press(" ")
    assert (view.paused, view.changed) == (True, False)
    assert plain(view.lines(SIZE))[-1].startswith("PAUSED")
    view.press("v")
    view.press("v")
    assert "vhost" not in view.request()
    view.press("escape")
    assert view.request()["filter"] == ""
    assert not view.press("q")


def test_q_is_a_letter_of_a_filter() -> None:
    """While the filter is typed, only Ctrl-C and Ctrl-D end the view."""
    view = TopView("publish", "", None, reverse=False)
    view.press("/")
    assert view.press("q")
    assert view.request()["filter"] == "q"
    assert "filter: q_" in plain(view.lines(SIZE))[0]
    assert not view.press("\x04")


def test_alarms_and_problems_stand_below() -> None:
    """The last rows stay while the broker does not answer."""
    view = TopView("publish", "", None, reverse=False)
    view.update(answer(row("orders"), alarms=["memory"]))
    assert plain(view.lines(SIZE))[-1] == "ALARM: low on memory: publishers are blocked"
    view.fail("no broker runs")
    assert plain(view.lines(SIZE))[-1] == "no broker runs"
    assert plain(view.lines(SIZE))[4].startswith("orders")
    view.update(answer())
    assert plain(view.lines(SIZE))[-1].startswith("q quit")
