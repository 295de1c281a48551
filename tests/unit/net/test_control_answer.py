"""Answers of the control socket to clients that have left."""

from __future__ import annotations

from typing import Any, cast

from broker.net.control import _write


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
    await _write(cast("Any", Left()), {"ok": True})
