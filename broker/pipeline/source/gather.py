"""Picks values out of a slot file's bytes into Arrow arrays, without a step of Python's per value.

A row log and a fixed-width index make an Arrow array of views: 16 bytes a value, short ones inline, long ones pointing
into the buffer. Casting that to an ordinary array lets Arrow do the copy.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = ["Gather"]

VIEW: Final = np.dtype([("length", "<i4"), ("octets", "V12")])
INLINE_MAX: Final = 12

Places = Any  # numpy's: mypy sees nothing of it
Mask = Any


class Gather:
    """Picks from one buffer.

    Shapes: starts and lengths are arrays of one length, of places that lie within the buffer and at least 12 bytes
        before its end; present says which values there are, None for all.
    """

    __slots__ = ("_buffer", "_twelves")

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = pa.py_buffer(buffer)
        # At each place the 12 bytes from there on: what an inline view holds, and the prefix of a longer one.
        self._twelves = np.ndarray(shape=(len(buffer) - 11,), dtype="V12", buffer=buffer, strides=(1,))

    def octets(self, starts: Places, lengths: Places, present: Mask = None) -> pa.BinaryArray:
        """Return the values. Cost: a copy of their bytes."""
        if present is not None:
            starts, lengths = np.where(present, starts, 0), np.where(present, lengths, 0)
        views: Any = np.empty(len(starts), VIEW)
        views["length"] = lengths
        views["octets"] = self._twelves[starts]
        words: Any = views.view("<i4").reshape(-1, 4)
        long = lengths > INLINE_MAX
        if long.all():
            words[:, 2], words[:, 3] = 0, starts
        elif long.any():
            words[long, 2], words[long, 3] = 0, starts[long]
        validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
        array = pa.Array.from_buffers(
            pa.binary_view(), len(starts), [validity, pa.py_buffer(views), self._buffer], -1 if validity else 0
        )
        return array.cast(pa.binary())

    def text(self, starts: Places, lengths: Places, present: Mask = None) -> pa.StringArray:
        """Return the values as text; octets that are not UTF-8 become replacement characters, as in the logs."""
        octets = self.octets(starts, lengths, present)
        try:
            return octets.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array(
                [None if value is None else value.decode("utf-8", "replace") for value in octets.to_pylist()],
                pa.string(),
            )
