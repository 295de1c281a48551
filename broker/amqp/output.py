"""The output of a connection: frames of all its channels, until the transport takes them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from mypy_extensions import mypyc_attr

from broker.amqp.codec import Method, encode_method
from broker.amqp.connection_limits import ConnectionLimits
from broker.amqp.control import CLOSED, GREETING
from broker.amqp.framing import HEARTBEAT, Octets

__all__ = ["ConnectionOutput", "OutputTaker"]


@mypyc_attr(allow_interpreted_subclasses=True)
class OutputTaker:
    """What takes the output of a connection and writes it."""

    __slots__ = ()

    @abstractmethod
    def output_waits(self) -> None:
        """Note that there is output, or another reason to call take_output(); called once until it is called."""


class Nobody(OutputTaker):
    """Takes no output, in place of a transport that is gone."""

    __slots__ = ()

    def output_waits(self) -> None:
        """Do nothing."""


NOBODY: Final = Nobody()


class ConnectionOutput:
    """The half of a connection that its channels write to.

    Shapes: `large_at` are the indexes in `out` of pieces that are too large to be joined with others.
    Invariant: ``held`` is set from the first hold until each hold has been released.
    """

    __slots__ = (
        "_holds",
        "_taker",
        "_told",
        "frame_max",
        "held",
        "large_at",
        "limits",
        "out",
        "out_bytes",
        "sent",
        "state",
    )

    def __init__(self, limits: ConnectionLimits, taker: OutputTaker) -> None:
        self.limits = limits
        self.state = GREETING
        self.frame_max = limits.frame_max_bytes
        self.held = False
        self._holds = 0
        self.out: list[Octets] = []
        self.large_at: list[int] = []
        self.out_bytes = 0
        self.sent = 0
        self._taker = taker
        self._told = False  # the taker knows of the output

    def hold(self) -> None:
        """Stop processing after the present frame until this hold is released, because something comes first."""
        self._holds += 1
        self.held = True

    def release(self) -> None:
        """End one hold; after the last one tell the taker, which continues with feed(b"")."""
        if self._holds > 1:
            self._holds -= 1
        else:
            self.end_holds()
            self.touch()

    def end_holds(self) -> None:
        """End all holds, because what they wait for no longer matters."""
        self._holds = 0
        self.held = False

    def forget_taker(self) -> None:
        """Tell nobody of output any more, because the transport is gone."""
        self._taker = NOBODY

    def discard_output(self) -> None:
        """Forget the frames that wait to be taken."""
        self.out.clear()
        self.large_at.clear()
        self.out_bytes = 0

    def send(self, channel: int, method: Method) -> None:
        """Send a method."""
        self.write(encode_method(channel, method))

    def write(self, *frames: Octets) -> None:
        """Append complete frames, which may be in pieces, to the output."""
        if self.state is CLOSED:
            return
        self.out += frames
        for frame in frames:
            self.out_bytes += len(frame)
        self.touch()

    def send_heartbeat(self) -> None:
        """Send a heartbeat frame."""
        self.write(HEARTBEAT)

    def touch(self) -> None:
        """Tell the taker, once until it takes the output."""
        if not self._told:
            self._told = True
            self._taker.output_waits()

    def take_output(self) -> list[Octets]:
        """Return the output in pieces to write, and forget it; only large pieces are not joined."""
        self._told = False
        out = self.out
        if not out:
            return []
        self.out_bytes = 0
        if not self.large_at:
            octets = b"".join(out)
            out.clear()
            self.sent += len(octets)
            return [octets]
        pieces = join_small(out, self.large_at)
        self.large_at.clear()
        out.clear()
        self.sent += sum([len(piece) for piece in pieces])
        return pieces


def join_small(out: list[Octets], large_at: list[int]) -> list[Octets]:
    """Return the output in few pieces: small pieces between large ones are joined.

    Shapes: `large_at` are the ascending indexes of the large pieces in `out`.
    """
    if not large_at:
        return [b"".join(out)] if out else []
    pieces: list[Octets] = []
    at = 0
    for place in large_at:
        pieces.append(b"".join(out[at:place]))
        pieces.append(out[place])
        at = place + 1
    pieces.append(b"".join(out[at:]))
    return pieces
