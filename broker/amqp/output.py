"""The output of a connection: the frames of all its channels, until the transport writes them."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from broker.amqp.codec import Method, encode_method
from broker.amqp.control import CLOSED, GREETING
from broker.amqp.framing import HEARTBEAT, Octets
from broker.amqp.handshake import ConnectionLimits

UNDECIDED: Final = 1 << 62


@mypyc_attr(allow_interpreted_subclasses=True)
class OutputTaker:
    """The consumer of a connection's output, which writes it to the socket."""

    __slots__ = ()

    @abstractmethod
    def output_waits(self) -> None:
        """Schedule a call of take_output(). The connection does not call this method again before that call."""


class NoTaker(OutputTaker):
    """The taker of a closed connection, which does nothing."""

    def output_waits(self) -> None:
        """Do nothing."""


NO_TAKER: Final = NoTaker()


class Withheld:
    """Frames of a channel to send later, and a function to call right afterwards.

    Units: `number` is the number of the change that must be on disk first, 0 for frames that only follow others, or
        UNDECIDED until the number is known.
    """

    __slots__ = ("frames", "number", "then")

    def __init__(
        self, frames: tuple[Octets, ...], number: int = UNDECIDED, then: Callable[[], None] | None = None
    ) -> None:
        self.frames = frames
        self.number = number
        self.then = then

    def wait_for(self, number: int) -> None:
        self.number = number


class ConnectionOutput:
    """The output half of a connection, to which its channels write.

    An answer about a change that a crash could undo is *withheld* until the change is on disk. Later answers of its
    channel are sent after it; confirms and deliveries do not wait.
    Shapes: `large_at` are the indexes in `out` of pieces too large to be joined. `_withheld` maps channels to their
        withheld frames, in order; it is None if there are none.
    Invariant: `held` is set while there is at least one hold.
    """

    __slots__ = ("_after_answers", "_announced", "_holds", "_is_full", "_taker", "_withheld", "_withheld_bytes",
                 "frame_max", "held", "large_at", "limits", "out", "out_bytes", "sent", "state")  # fmt: skip

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
        self._announced = False  # the taker was notified, and has not taken the output since
        self._withheld: dict[int, deque[Withheld]] | None = None
        self._withheld_bytes = 0
        self._is_full = False  # too much is withheld, so the connection is held
        self._after_answers: list[Callable[[], None]] = []  # functions to call once nothing is withheld

    def hold(self) -> None:
        """Stop processing frames after the current one, until this hold is released."""
        self._holds += 1
        self.held = True

    def release(self) -> None:
        """End one hold; after the last one, notify the taker, which continues with feed(b"")."""
        if self._holds > 1:
            self._holds -= 1
        else:
            self.end_holds()
            self.touch()

    def end_holds(self) -> None:
        """End all holds, because their reasons no longer matter."""
        self._holds = 0
        self.held = False

    def forget_taker(self) -> None:
        """Stop notifying the taker, because the socket is closed."""
        self._taker = NO_TAKER

    def discard_output(self) -> None:
        """Discard the output and withheld frames."""
        self.out.clear()
        self.large_at.clear()
        self.out_bytes = 0
        self.drop_withheld()

    def send(self, channel: int, method: Method) -> None:
        self.write(encode_method(channel, method))

    def write(self, *frames: Octets) -> None:
        """Append complete frames, which may be in pieces, to the output."""
        if self.state is CLOSED:
            return
        self.out += frames
        for frame in frames:
            self.out_bytes += len(frame)
        if not self._announced:
            self._announced = True
            self._taker.output_waits()

    # -- withheld answers ----------------------------------------------------------------------------------------------

    @property
    def withholds(self) -> bool:
        """Whether an answer of any channel is withheld."""
        return self._withheld is not None

    def withholds_on(self, channel: int) -> bool:
        """Return whether an answer of a channel is withheld."""
        return self._withheld is not None and channel in self._withheld

    def withhold(self, channel: int, answer: Withheld) -> None:
        """Withhold an answer until `send_withheld` sends it; hold the connection while too much is withheld."""
        withheld = self._withheld
        if withheld is None:
            withheld = self._withheld = {}
        waiting = withheld.get(channel)
        if waiting is None:
            waiting = withheld[channel] = deque()
        waiting.append(answer)
        for frame in answer.frames:
            self._withheld_bytes += len(frame)
        if self._withheld_bytes > self.limits.unsent_max_bytes and not self._is_full:
            self._is_full = True
            self.hold()

    def write_behind(self, channel: int, *frames: Octets) -> None:
        """Append complete frames of a channel to the output, after its withheld answers."""
        if self.withholds_on(channel):
            self.withhold(channel, Withheld(frames, 0))
        else:
            self.write(*frames)

    def when_sent(self, channel: int, act: Callable[[], None]) -> None:
        """Call a function now or, if the channel withholds answers, after these were sent."""
        if self.withholds_on(channel):
            self.withhold(channel, Withheld((), 0, act))
        else:
            act()

    def when_all_sent(self, act: Callable[[], None]) -> None:
        """Call a function once nothing is withheld, possibly now."""
        if self._withheld is None:
            act()
        else:
            self._after_answers.append(act)

    def send_withheld(self, upto: int) -> bool:
        """Send answers about changes up to a number, in order on each channel; return whether any is still withheld.

        Cost: the answers sent, and the channels with withheld answers.
        """
        withheld = self._withheld
        if withheld is None:
            return False
        for channel, waiting in list(withheld.items()):
            while waiting and waiting[0].number <= upto:
                answer = waiting.popleft()
                for frame in answer.frames:
                    self._withheld_bytes -= len(frame)
                self.write(*answer.frames)
                if answer.then is not None:
                    answer.then()
            if not waiting:
                del withheld[channel]
        if self._is_full and self._withheld_bytes <= self.limits.unsent_max_bytes:
            self._is_full = False
            self.release()
        if withheld:
            return True
        self.drop_withheld()
        return False

    def drop_withheld(self) -> None:
        """Discard withheld answers, and call the functions that wait until nothing is withheld."""
        self._withheld = None
        self._withheld_bytes = 0
        if self._is_full:
            self._is_full = False
            self.release()
        after, self._after_answers = self._after_answers, []
        for act in after:
            act()

    @property
    def heartbeat(self) -> bytes:
        """The octets of a heartbeat; empty in a protocol without server heartbeats."""
        return HEARTBEAT

    def touch(self) -> None:
        """Notify the taker, unless it was notified since it last took the output."""
        if not self._announced:
            self._announced = True
            self._taker.output_waits()

    def take_output(self) -> list[Octets]:
        """Return and clear the output, in pieces to write: small pieces are joined, large ones are not."""
        self._announced = False
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
