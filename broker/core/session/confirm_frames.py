"""The frames that confirm publishes, and the numbers that they confirm."""

from __future__ import annotations

from bisect import bisect_right, insort
from struct import Struct
from typing import Final

__all__ = ["ACK", "DROPPED", "NACK", "OtherAnswers", "confirm_frame"]

ACK: Final = 80
NACK: Final = 120
DROPPED: Final = 81  # an ack of a message that was dropped because its number was used before
_CONFIRM: Final = Struct(">BHIHHQBB")  # basic.ack, basic.nack: type, channel, size, class, method, tag, bits, frame end
# The bit that RabbitMQ sets in every nack, where it means nothing to a publisher. In an ack it says that the broker had
# the message already; clients look at the first bit alone, and only one that announced the capability gets it.
_MARKED: Final = 2


def confirm_frame(channel: int, kind: int, upto: int, count: int) -> bytes:
    """Return the frame that confirms the last `count` publishes up to a number. Shapes: `kind` is ACK, NACK or DROPPED.

    Source: RabbitMQ's publisher confirms; basic.ack (60, 80), basic.nack (60, 120).
    """
    bits = (1 if count > 1 else 0) | (0 if kind == ACK else _MARKED)
    return _CONFIRM.pack(1, channel, 13, 60, NACK if kind == NACK else ACK, upto, bits, 0xCE)


class OtherAnswers:
    """The publishes of a channel that get another answer than a plain ack: a nack, or an ack of a dropped message.

    Shapes: both lists of numbers ascend.
    """

    __slots__ = ("_dropped", "_refused")

    def __init__(self) -> None:
        self._refused: list[int] = []
        self._dropped: list[int] = []

    def refuse(self, number: int) -> None:
        """Answer a publish with a nack. Cost: little for the last number, a search for one before."""
        refused = self._refused
        if not refused or refused[-1] < number:
            refused.append(number)
        elif number not in refused:
            insort(refused, number)

    def drop(self, number: int) -> None:
        """Answer the last publish as one whose number was used before."""
        self._dropped.append(number)

    def take_due(self, upto: int) -> dict[int, int]:
        """Remove and return the kinds of the answers up to a number."""
        kinds = dict.fromkeys(due_numbers(self._refused, upto), NACK)
        kinds.update(dict.fromkeys(due_numbers(self._dropped, upto), DROPPED))
        return kinds


def due_numbers(numbers: list[int], upto: int) -> list[int]:
    """Remove the numbers up to `upto` from an ascending list, and return them."""
    at = bisect_right(numbers, upto)
    due = numbers[:at]
    del numbers[:at]
    return due
