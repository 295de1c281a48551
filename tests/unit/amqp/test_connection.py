"""The connection machine apart from the protocol: output, holding, external errors, and closing sessions once."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable

import pytest
from pamqp import commands, heartbeat

from broker.amqp.connection import Connection
from broker.amqp.errors import ChannelError, ConnectionFault, Fatal, Refused
from tests.protocol.recording import PROTOCOL_HEADER, Peer, closes, method_frame, publish_frames, raw_frame

QOS = commands.Basic.Qos()
PURGE = commands.Queue.Purge(queue="q")


def open_peer(*numbers: int) -> Peer:
    """Return a peer with these channels open, by default channel 1."""
    peer = Peer().log_in()
    for number in numbers or (1,):
        peer.open_channel(number)
    return peer


def closings(peer: Peer) -> list[tuple[object, ...]]:
    """Return the closed sessions, in order."""
    return [event for event in peer.events if event[0] in ("channel closed", "closed")]


# ---- output ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def peer() -> Peer:
    """Return a peer with channel 1 open."""
    return open_peer()


def test_transport_is_woken_once_until_it_takes_the_output(peer: Peer) -> None:
    """The machine wakes the transport once per take, however much output is added."""
    woken = peer.taker.told
    for _ in range(5):
        peer.connection.send(1, commands.Basic.QosOk())
    assert peer.taker.told == woken + 1
    assert len(peer.answers()) == 5
    peer.connection.send(1, commands.Basic.QosOk())
    assert peer.taker.told == woken + 2


def test_output_is_counted() -> None:
    """out_bytes counts pending octets, sent the taken ones, received the incoming ones."""
    peer = Peer()
    peer.connection.feed(PROTOCOL_HEADER)
    waiting = peer.connection.out_bytes
    assert waiting == sum(map(len, peer.connection.out)) > 0
    assert sum(map(len, peer.connection.take_output())) == waiting
    assert (peer.connection.out_bytes, peer.connection.sent, peer.connection.received) == (0, waiting, 8)
    peer.connection.write(b"ab", b"cde")
    assert (peer.connection.out_bytes, peer.connection.take_output()) == (5, [b"abcde"])


def test_large_pieces_of_the_output_stand_by_themselves(peer: Peer) -> None:
    """Large pieces are counted, handed on as they are and then released."""
    connection = peer.connection
    sent = connection.sent
    large = memoryview(bytes(1 << 20))
    connection.write(b"ab", b"cd")
    connection.large_at.append(len(connection.out))
    connection.write(large, b"e")
    assert connection.out_bytes == len(large) + 5
    assert connection.take_output() == [b"abcd", large, b"e"]
    assert connection.sent == sent + len(large) + 5
    connection.write(b"ab", b"cd", b"e")
    assert connection.take_output() == [b"abcde"]
    connection.large_at.append(len(connection.out))
    connection.write(large)
    connection.lost()
    assert (connection.out_bytes, connection.take_output()) == (0, [])


def test_heartbeat_is_sent(peer: Peer) -> None:
    """A heartbeat frame is on channel 0 and empty."""
    peer.connection.write(peer.connection.heartbeat)
    ((channel, frame),) = peer.answers()
    assert channel == 0
    assert isinstance(frame, heartbeat.Heartbeat)


# ---- holding ---------------------------------------------------------------------------------------------------------


def test_hold_stops_behind_the_present_frame() -> None:
    """While an answer is pending nothing else is processed on any channel; afterwards everything is, in order."""
    peer = open_peer(1, 2)
    peer.connection.hold()
    frames = [method_frame(1, QOS), method_frame(2, PURGE), publish_frames(1, b"a"), method_frame(1, QOS)]
    assert peer.connection.feed(b"".join(frames)) is False
    assert len(peer.events) == 4
    woken = peer.taker.told
    peer.connection.release()
    assert peer.taker.told == woken + 1
    assert peer.connection.feed(b"") is True
    assert [event[2] for event in peer.events[4:]] == [
        "Basic.Qos",
        "Queue.Purge",
        ("x", "k", False, False),
        "Basic.Qos",
    ]


def test_session_holds_in_the_middle_of_a_chunk(peer: Peer) -> None:
    """A session that holds during a method stops the processing there."""
    session = peer.connection.channels[1].session
    taken = session.method

    def hold(method: object) -> None:
        taken(method)  # type: ignore[arg-type]
        peer.connection.hold()

    session.method = hold  # type: ignore[method-assign]
    assert peer.connection.feed(method_frame(1, QOS) * 3) is False
    rounds = 0
    while peer.connection.held:
        rounds += 1
        assert len(peer.events) == 3 + rounds
        peer.connection.release()
        peer.connection.feed(b"")
        if rounds == 3:
            break
    assert len(peer.events) == 6


def test_nothing_is_left_when_the_hold_is_at_the_end(peer: Peer) -> None:
    """feed() returns False only if whole frames are left."""
    peer.connection.hold()
    assert peer.connection.feed(method_frame(1, QOS)[:-1]) is True
    assert peer.connection.feed(b"\xce") is False


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_forced_from_outside(peer: Peer) -> None:
    """A shutdown closes the connection with 320: the sessions at once, the peer after close-ok."""
    peer.connection.fail(ConnectionFault(320, "Node was put into maintenance mode"))
    text = "CONNECTION_FORCED - Node was put into maintenance mode"
    assert closes(peer.answers()) == [(0, 320, text)]
    assert closings(peer) == [("channel closed", 1), ("closed",)]
    assert peer.connection.closing
    assert str(peer.connection.failure) == text
    peer.connection.fail(ConnectionFault(541, "again"))
    assert peer.say(commands.Connection.CloseOk()) == []
    assert peer.connection.finished


def test_forced_in_the_greeting() -> None:
    """A client that has not sent its protocol header gets no close, because it might not speak AMQP."""
    peer = Peer()
    peer.connection.fail(ConnectionFault(320, "shutdown"))
    assert peer.connection.finished
    assert peer.connection.take_output() == []
    assert closings(peer) == [("closed",)]


def test_soft_error_from_outside() -> None:
    """An asynchronous error may close one channel."""
    peer = open_peer(1, 2)
    peer.connection.fail(ChannelError(406, "no longer"), channel=2)
    assert closes(peer.answers()) == [(2, 406, "PRECONDITION_FAILED - no longer")]
    assert closings(peer) == [("channel closed", 2)]
    peer.connection.fail(ChannelError(406, "again"), channel=2)
    assert peer.answers() == []


def test_soft_error_without_a_channel_is_hard(peer: Peer) -> None:
    """A soft error without a channel to close closes the connection."""
    peer.session.raises["channel opened"] = ChannelError(403, "no channels today")
    assert closes(peer.say(commands.Channel.Open(), channel=2)) == [(0, 403, "ACCESS_REFUSED - no channels today")]
    assert closings(peer) == [("channel closed", 1), ("closed",)]


@pytest.mark.parametrize("where", ["Basic.Qos", "Basic.Publish", "channel opened"])
def test_unexpected_error_ends_this_connection(where: str, peer: Peer) -> None:
    """An unexpected exception of a session is logged and answered with 541."""
    peer.session.raises[where] = ZeroDivisionError("oops")
    answers = peer.say(method_frame(1, QOS) + publish_frames(1, b"a") + method_frame(2, commands.Channel.Open()))
    ((_, code, text),) = closes(answers)
    assert (code, "oops" in text) == (541, False)
    assert [type(error) for error in peer.session.crashes] == [ZeroDivisionError]
    assert closings(peer) == [("channel closed", 1), ("closed",)]


@pytest.mark.parametrize("where", ["Basic.Qos", "Basic.Publish", "channel opened", "channel closed", "closed"])
def test_failed_write_goes_through(where: str, peer: Peer) -> None:
    """A failed write is never turned into a frame, but ends the process."""
    peer.session.raises[where] = Fatal("I/O error")
    frames = method_frame(1, QOS) + publish_frames(1, b"a") + method_frame(2, commands.Channel.Open())
    frames += method_frame(0, commands.Connection.Close(200, "", 0, 0))
    with pytest.raises(Fatal):
        peer.connection.feed(frames)


def test_errors_are_seen() -> None:
    """The logger gets each error once, with its channel."""
    peer = open_peer(1, 2)
    peer.session.raises["Queue.Purge"] = ChannelError(404, "no queue 'q' in vhost '/'")
    peer.say(method_frame(2, PURGE) * 2, raw_frame(9, 1, b""))
    assert [(channel, text[:11]) for channel, text in peer.errors] == [(2, "NOT_FOUND -"), (1, "FRAME_ERROR")]


def test_error_names_its_own_method(peer: Peer) -> None:
    """The class and method ids of an error are kept."""
    peer.session.raises["Queue.Purge"] = ChannelError(404, "elsewhere", 60, 70)
    ((_, close),) = peer.say(PURGE, channel=1)
    assert (close.class_id, close.method_id) == (60, 70)


# ---- the end of sessions ---------------------------------------------------------------------------------------------


def close_politely(peer: Peer) -> None:
    """Close from the client's side."""
    peer.say(commands.Connection.Close(200, "", 0, 0))


def close_by_error(peer: Peer) -> None:
    """Close by a hard error, and answer."""
    peer.say(raw_frame(9, 1, b""), commands.Connection.CloseOk())


def close_by_broken_frame(peer: Peer) -> None:
    """Close by octets that form no frame."""
    peer.say(struct.pack(">BHI", 1, 1, 1 << 30))


def not_close(_: Peer) -> None:
    """Leave it to the transport to close the connection."""


@pytest.mark.parametrize("ending", [close_politely, close_by_error, close_by_broken_frame, not_close])
def test_every_session_is_closed_once(ending: Callable[[Peer], None]) -> None:
    """However a connection ends, each session is closed once, and the connection's session last."""
    peer = open_peer(1, 2, 3)
    peer.session.raises["Queue.Purge"] = ChannelError(404, "no queue 'q' in vhost '/'")
    peer.say(PURGE, channel=2)
    peer.say(commands.Channel.Close(200, "", 0, 0), channel=3)
    ending(peer)
    peer.connection.lost()
    peer.connection.fail(ConnectionFault(320, "too late"))
    peer.connection.feed(method_frame(1, QOS))
    assert Counter(closings(peer)) == Counter([*[("channel closed", number) for number in (1, 2, 3)], ("closed",)])
    assert closings(peer)[-1] == ("closed",)
    assert peer.connection.finished
    assert peer.connection.take_output() == []


def test_session_that_cannot_be_closed() -> None:
    """An error in closing a session is logged, and the other sessions are closed."""
    peer = open_peer(1, 2)
    peer.session.raises |= {"channel closed": ZeroDivisionError(), "closed": ZeroDivisionError()}
    peer.connection.lost()
    assert closings(peer) == [("channel closed", 1), ("channel closed", 2), ("closed",)]
    assert len(peer.session.crashes) == 3


def test_session_may_still_speak_while_its_channel_is_closed_politely() -> None:
    """Output of a session during a client's channel.close precedes close-ok; after an error it is dropped."""
    peer = open_peer(1)
    session = peer.connection.channels[1].session
    channel = peer.connection.channels[1]
    session.close = lambda: channel.send(commands.Basic.Ack(1))  # type: ignore[method-assign]
    answers = peer.say(commands.Channel.Close(200, "", 0, 0), channel=1)
    assert [answer.name for _, answer in answers] == ["Basic.Ack", "Channel.CloseOk"]

    peer = open_peer(1)
    channel = peer.connection.channels[1]
    channel.session.close = lambda: channel.send(commands.Basic.Ack(1))  # type: ignore[method-assign]
    peer.connection.fail(ChannelError(404, "gone"), channel=1)
    assert [answer.name for _, answer in peer.answers()] == ["Channel.Close"]


def test_refused_is_kept_for_the_log() -> None:
    """The reason of a refusal is available to the logger and is not sent to the client."""
    peer = Peer()
    peer.session.raises["authenticate"] = Refused("user 'guest' - loopback only")
    peer.say(PROTOCOL_HEADER, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"))
    assert str(peer.connection.failure) == "user 'guest' - loopback only"


def test_a_fresh_connection_has_the_limits_it_was_given() -> None:
    """The broker's own limits apply until the handshake has negotiated others."""
    connection: Connection = Peer().connection
    assert (connection.frame_max, connection.channel_max, connection.heartbeat_s) == (131072, 2047, 60)
    assert (connection.held, connection.finished, connection.closing) == (False, False, False)


# ---- what comes next -------------------------------------------------------------------------------------------------


def test_methods_that_come_next_can_be_seen_and_are_processed_later() -> None:
    """While the connection is held, whole methods of open channels are seen, up to anything else."""
    peer = open_peer(1, 2)
    peer.connection.hold()
    frames = [method_frame(1, QOS), method_frame(2, PURGE)]
    peer.connection.feed(b"".join(frames) + method_frame(1, PURGE)[:-1])
    for _ in range(2):
        seen = [(channel.number, type(method)) for channel, method in peer.connection.upcoming(9)]
        assert seen == [(1, commands.Basic.Qos), (2, commands.Queue.Purge)]
    assert len(list(peer.connection.upcoming(1))) == 1
    before = len(peer.events)
    peer.connection.release()
    peer.connection.feed(b"")
    assert len(peer.events) == before + 2
    assert list(peer.connection.upcoming(9)) == []


@pytest.mark.parametrize(
    "other",
    [
        publish_frames(1, b"body"),
        heartbeat.Heartbeat().marshal(),
        method_frame(3, PURGE),
        method_frame(1, commands.Channel.Close(200, "", 0, 0)),
        method_frame(1, PURGE)[:-1] + b"?",
        raw_frame(1, 1, b"\x00\x32\x00\x1e\x00"),
    ],
)
def test_anything_but_a_whole_method_of_an_open_channel_ends_what_is_seen(other: bytes, peer: Peer) -> None:
    """A publish, a heartbeat, a close, a channel that is not open and a broken frame are left to feed()."""
    peer.connection.hold()
    peer.connection.feed(method_frame(1, QOS) + other + method_frame(1, QOS))
    assert [type(method) for _, method in peer.connection.upcoming(9)] == [commands.Basic.Qos]
