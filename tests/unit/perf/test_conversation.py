"""A conversation with a misbehaving broker ends with the reason, and the others go on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from broker.perf import conversation, wire
from broker.perf.conversation import Conversation, Switchboard
from broker.perf.faults import BrokenStream, Refusal, Stalled
from broker.perf.peer import Address, Script
from tests.deadline import wait_until

HEARTBEAT = wire.frame(wire.HEARTBEAT, 0, b"")
OPEN_OK = wire.method(1, wire.CHANNEL_OPEN_OK, wire.long_string(b""))
REFUSED = wire.method(
    1, wire.CHANNEL_CLOSE, b"\x01\x94" + wire.short_string("NOT_FOUND - no queue 'q'") + b"\x00\x32\x00\x0a"
)


class Listener:
    """Accepts connections, and lets the test write on each."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.listening.getsockname()[1])
        self.accepted: list[socket.socket] = []

    def accept(self) -> socket.socket:
        """Return the broker's end of the next connection."""
        accepted, _ = self.listening.accept()
        accepted.settimeout(10)
        self.accepted.append(accepted)
        return accepted


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Provide a listener, and close it with everything it accepted."""
    made = Listener()
    yield made
    for accepted in [*made.accepted, made.listening]:
        accepted.close()


@pytest.fixture
def board() -> Iterator[Switchboard]:
    """Provide a switchboard, and close it."""
    made = Switchboard()
    yield made
    made.close()


def asking(times: int = 1) -> Script:
    """Open channel 1 this many times."""
    for _ in range(times):
        yield wire.method(1, wire.CHANNEL_OPEN, b"\x00"), wire.CHANNEL_OPEN_OK


def until_idle(board: Switchboard, talk: Conversation) -> None:
    """Run turns until a script has ended."""
    wait_until(lambda: board.turn(0.05) is not None and not talk.busy, "the end of the script")


def test_an_answer_brings_the_next_request(listener: Listener, board: Switchboard) -> None:
    """Three answers, one split into bytes and among heartbeats, end a script of three; the connection stays."""
    talk = board.dial(listener.address, asking(3))
    broker = listener.accept()
    for answer in (OPEN_OK, HEARTBEAT + OPEN_OK + HEARTBEAT):
        broker.sendall(answer)
    for byte in HEARTBEAT + OPEN_OK:
        broker.sendall(bytes((byte,)))
        board.turn(0.01)
    until_idle(board, talk)
    assert talk.fault is None
    assert board.open == {talk}


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (REFUSED, Refusal, "404 NOT_FOUND - no queue 'q'"),
        (wire.method(1, wire.CONFIRM_SELECT_OK), Refusal, "unasked"),
        (wire.frame(wire.BODY, 1, b"x"), BrokenStream, "a frame of type 3"),
        (None, Refusal, "the broker closed the socket"),
    ],
)
def test_a_script_hears_why_it_cannot_go_on(
    listener: Listener, board: Switchboard, answer: bytes | None, kind: type[Exception], text: str
) -> None:
    """The script gets the exception, the socket is closed, and another conversation goes on."""
    heard: list[Exception] = []

    def listening() -> Script:
        try:
            yield from asking()
        except Exception as error:
            heard.append(error)
            raise

    talk = board.dial(listener.address, listening())
    broker = listener.accept()
    other = board.dial(listener.address, asking())
    if answer is None:
        broker.recv(4096)  # unread input would make the close a reset
        broker.close()
    else:
        broker.sendall(answer)
    listener.accept().sendall(OPEN_OK)
    until_idle(board, talk)
    until_idle(board, other)
    assert isinstance(talk.fault, kind)
    assert text in str(talk.fault)
    assert heard == [talk.fault]
    assert other.fault is None
    assert board.open == {other}


def test_an_idle_connection_that_is_closed_is_noticed(listener: Listener, board: Switchboard) -> None:
    """The next turn reports an idle connection that the broker closed."""
    talk = board.dial(listener.address, asking())
    broker = listener.accept()
    broker.sendall(OPEN_OK)
    until_idle(board, talk)
    broker.sendall(
        wire.method(0, wire.CONNECTION_CLOSE, b"\x01\x40" + wire.short_string("CONNECTION_FORCED") + bytes(4))
    )
    assert wait_until(lambda: board.turn(0.05), "the notice") == [talk]
    assert "320 CONNECTION_FORCED" in str(talk.fault)
    assert not board.open


def test_heartbeats_go_out_to_those_that_are_open(listener: Listener) -> None:
    """Open connections send heartbeats, with or without a script; closed ones send none."""
    board = Switchboard(heartbeat_s=0.02)
    held, gone = board.dial(listener.address, asking()), board.dial(listener.address, asking())
    brokers = [listener.accept(), listener.accept()]
    board.hang_up(gone)
    received = bytearray()
    brokers[0].setblocking(False)

    def beaten() -> bool:
        board.turn(0.05)
        try:
            received.extend(brokers[0].recv(4096))
        except BlockingIOError:
            pass
        return received.count(HEARTBEAT) >= 3

    wait_until(beaten, "three heartbeats")
    assert held.fault is None
    board.close()
    assert HEARTBEAT not in brokers[1].recv(4096)


def test_a_broker_that_says_nothing_is_not_waited_for(
    listener: Listener, board: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in which scripts wait and nothing arrives ends; one in which all are idle goes on."""
    monkeypatch.setattr(conversation, "CALL_LIMIT_S", 0.05)
    talk = board.dial(listener.address, asking())
    broker = listener.accept()
    with pytest.raises(Stalled, match="no answer from the broker"):
        wait_until(lambda: board.turn(0.01) and False, "a stall")
    monkeypatch.setattr(conversation, "CALL_LIMIT_S", 30.0)
    broker.sendall(OPEN_OK)
    until_idle(board, talk)
    monkeypatch.setattr(conversation, "CALL_LIMIT_S", 0.0)
    assert board.turn(0.01) == []


def test_one_script_at_a_time(listener: Listener, board: Switchboard) -> None:
    """Starting a second script on a busy conversation raises."""
    talk = board.dial(listener.address, asking())
    with pytest.raises(RuntimeError):
        board.follow(talk, asking())


def test_a_request_larger_than_the_kernel_takes_is_sent_whole(listener: Listener, board: Switchboard) -> None:
    """A slow broker receives every byte of a large request."""
    request = wire.frame(wire.METHOD, 1, bytes(8 << 20))
    read = bytearray()

    def reading() -> None:
        broker = listener.accept()
        while len(read) < len(request) and (chunk := broker.recv(1 << 16)):
            read.extend(chunk)
        broker.sendall(OPEN_OK)

    thread = threading.Thread(target=reading)
    thread.start()

    def script() -> Script:
        yield request, wire.CHANNEL_OPEN_OK

    talk = board.dial(listener.address, script())
    until_idle(board, talk)
    thread.join()
    assert read == request
    assert talk.fault is None
