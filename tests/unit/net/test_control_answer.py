"""Answers of the control socket: to clients that have left, and long ones."""

from __future__ import annotations

import json
import select
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.net.control import _Client, _pieces, write_answer
from broker.operations.request import ROWS_AT_ONCE


class Left:
    """A writer whose transport has been closed: uvloop's raises RuntimeError."""

    def is_closing(self) -> bool:
        """Return that it is."""
        return True

    def write(self, _data: bytes) -> None:
        """Refuse."""
        raise RuntimeError("unable to perform operation on a closed transport")


async def test_nothing_is_written_to_a_client_that_has_left() -> None:
    """It may have waited too long for its answer."""
    await write_answer(cast("Any", Left()), {"ok": True})


def test_a_client_is_gone_once_it_has_closed_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that only ended its side still reads the answer; where Python has no poll, nobody is known to be gone."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = _Client(
            cast("Any", None), cast("Any", SimpleNamespace(is_closing=lambda: False, get_extra_info=lambda _: ours))
        )
        told = [client.is_gone()]
        theirs.shutdown(socket.SHUT_WR)
        told.append(client.is_gone())
        theirs.close()
        told.append(client.is_gone())
        assert told == [False, False, True]
        monkeypatch.delattr(select, "poll")
        assert not client.is_gone()


def test_the_rows_of_a_long_answer_are_freed_as_they_are_encoded() -> None:
    """With each piece its rows leave the list, so that no turn frees all of them; the answer is the same."""
    rows = [{"number": number} for number in range(2 * ROWS_AT_ONCE + 1)]
    expected = list(rows)
    pieces, left = [], []
    for piece in _pieces({"ok": True, "result": rows}):
        pieces.append(piece)
        left.append(len(rows))
    assert json.loads("".join(pieces)) == {"ok": True, "result": expected}
    assert {ROWS_AT_ONCE + 1, 1, 0} <= set(left)
