"""The handshake as transcripts: the messages of both sides, and how it ends after an error."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from broker.amqp.errors import Refused
from broker.amqp.handshake import ConnectionLimits
from tests.protocol.recording import CAPABILITIES, PROTOCOL_HEADER, Peer, closes, method_frame, raw_frame

LOGIN_REFUSED = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
)


def start_ok(
    mechanism: str = "PLAIN", response: str = "\0guest\0guest", **announced: Any
) -> commands.Connection.StartOk:
    """Return the answer to connection.start of a client with these capabilities."""
    return commands.Connection.StartOk({"capabilities": {**announced}}, mechanism, response)


def test_orderly_connection() -> None:
    """Both sides follow section 2.2.4 in order, and the sessions are notified of each step."""
    peer = Peer()
    ((_, start),) = peer.say(PROTOCOL_HEADER)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert (start.mechanisms, start.locales) == ("PLAIN AMQPLAIN", "en_US")
    assert start.server_properties["product"] == "SlotMQ"
    assert start.server_properties["capabilities"]["basic.nack"] is True
    ((_, tune),) = peer.say(start_ok())
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)
    assert peer.say(commands.Connection.TuneOk(100, 8192, 17)) == []
    ((_, open_ok),) = peer.say(commands.Connection.Open("/"))
    assert open_ok.name == "Connection.OpenOk"
    machine = peer.connection
    assert (machine.channel_max, machine.frame_max, machine.heartbeat_s) == (100, 8192, 17)
    ((_, close_ok),) = peer.say(commands.Connection.Close(200, "bye", 0, 0))
    assert close_ok.name == "Connection.CloseOk"
    assert machine.finished
    assert machine.failure is None
    assert peer.events == [("authenticate", "PLAIN", b"\0guest\0guest"), ("open", "/"), ("closed",)]


def test_pipelined_handshake() -> None:
    """A client that sends everything without waiting gets every answer."""
    peer = Peer()
    steps = [start_ok(), commands.Connection.TuneOk(2047, 131072, 60), commands.Connection.Open("/")]
    answers = peer.say(PROTOCOL_HEADER + b"".join(method_frame(0, step) for step in steps))
    assert [answer.name for _, answer in answers] == ["Connection.Start", "Connection.Tune", "Connection.OpenOk"]


def test_0_9_client_is_served() -> None:
    """The protocol header of AMQP 0-9 is accepted as 0-9-1, as in RabbitMQ."""
    ((_, start),) = Peer().say(b"AMQP\x01\x01\x00\x09")
    assert start.name == "Connection.Start"


@pytest.mark.parametrize(
    "octets",
    [
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x01\x01\x08\x00",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"X",
    ],
)
def test_other_protocol_header(octets: bytes) -> None:
    """At the first differing octet the client gets our header, and the connection ends (section 4.2.2)."""
    peer = Peer()
    assert peer.say(octets) == [(0, PROTOCOL_HEADER)]
    assert peer.connection.finished
    assert isinstance(peer.connection.failure, Refused)
    assert peer.events == [("closed",)]


def test_unfinished_protocol_header() -> None:
    """Seven right octets are neither refused nor answered."""
    peer = Peer()
    assert peer.say(PROTOCOL_HEADER[:7]) == []
    assert not peer.connection.finished
    assert len(peer.say(PROTOCOL_HEADER[7:])) == 1


def test_wrong_password_for_a_client_that_listens() -> None:
    """A client with authentication_failure_close gets 403, and its close-ok ends the connection."""
    peer = Peer()
    peer.say(PROTOCOL_HEADER)
    answers = peer.say(start_ok(response="\0guest\0wrong", authentication_failure_close=True))
    assert closes(answers) == [(0, 403, LOGIN_REFUSED)]
    assert peer.events[-1] == ("closed",)
    peer.say(commands.Connection.CloseOk())
    assert peer.connection.finished
    assert isinstance(peer.connection.failure, Refused)
    assert peer.errors == [(0, "user 'x' - invalid credentials")]


@pytest.mark.parametrize("announced", [{}, {"authentication_failure_close": False}])
def test_wrong_password_for_any_other_client(announced: dict[str, Any]) -> None:
    """A client without that capability gets no close: the connection just ends (section 1.4.2.2)."""
    peer = Peer()
    peer.say(PROTOCOL_HEADER)
    assert peer.say(start_ok(response="\0guest\0wrong", **announced)) == []
    assert peer.connection.finished
    assert peer.events[-1] == ("closed",)


def test_a_refusal_that_is_not_told() -> None:
    """A mechanism that was not offered ends the connection without a close, whatever the capabilities."""
    peer = Peer()
    peer.session.raises["authenticate"] = Refused("unknown authentication mechanism", told=False)
    peer.say(PROTOCOL_HEADER)
    assert peer.say(start_ok("EXTERNAL", authentication_failure_close=True)) == []
    assert peer.connection.finished
    assert peer.errors == [(0, "unknown authentication mechanism")]
    assert peer.events[-1] == ("closed",)


def test_credentials_that_are_not_text() -> None:
    """A SASL response is octets, UTF-8 or not."""
    peer = Peer()
    peer.say(PROTOCOL_HEADER)
    well_formed = method_frame(0, start_ok(response="\0guest\0?????"))
    peer.say(well_formed.replace(b"?????", b"\xff\xfe\x80\x81\x00"))
    assert peer.events[0] == ("authenticate", "PLAIN", b"\0guest\0\xff\xfe\x80\x81\x00")


@pytest.mark.parametrize(
    ("tune_ok", "text"),
    [
        ((2047, 4095, 60), "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
        ((2047, 1, 60), "negotiated frame_max = 1 is lower than the minimum allowed value (4096)"),
        ((2047, 131073, 60), "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ((2047, 0, 60), "negotiated frame_max = 0 is higher than the maximum allowed value (131072)"),
        ((2048, 131072, 60), "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
        ((0, 131072, 60), "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
    ],
)
def test_limits_that_are_not_ours(tune_ok: tuple[int, int, int], text: str) -> None:
    """A limit above the offer, or too small to work with, is 530."""
    peer = Peer().log_in(until="tuning")
    assert closes(peer.say(commands.Connection.TuneOk(*tune_ok))) == [(0, 530, f"NOT_ALLOWED - {text}")]


@pytest.mark.parametrize(("channel_max", "frame_max"), [(1, 4096), (2047, 131072)])
def test_limits_at_their_ends(channel_max: int, frame_max: int) -> None:
    """The smallest and the largest limits are accepted."""
    peer = Peer().log_in(channel_max=channel_max, frame_max=frame_max)
    assert (peer.connection.channel_max, peer.connection.frame_max) == (channel_max, frame_max)


def test_virtual_host_that_is_not_there() -> None:
    """The session's refusal is sent as a connection.close that names connection.open."""
    peer = Peer().log_in(until="opening")
    ((_, close),) = peer.say(commands.Connection.Open("nowhere"))
    assert (close.reply_code, close.reply_text) == (530, "NOT_ALLOWED - vhost nowhere not found")
    assert (close.class_id, close.method_id) == (10, 40)


def test_frame_limit_before_and_after_tuning() -> None:
    """Before tune-ok the frame limit is initial_frame_max_bytes; afterwards it is the negotiated one."""
    payload = bytes(20000)
    early = Peer().log_in(until="starting")
    assert closes(early.say(raw_frame(1, 0, payload)))[0][1] == 501
    assert early.connection.finished
    late = Peer().log_in()
    assert closes(late.say(raw_frame(1, 0, payload)))[0][1] == 540
    small = Peer().log_in(frame_max=4096)
    assert closes(small.say(raw_frame(1, 0, payload)))[0][1] == 501


def test_capabilities_of_the_client() -> None:
    """A capability counts only if its value is true; false, missing and invalid values do not."""
    peer = Peer().log_in()
    assert all(peer.connection.has_capability(name) for name in CAPABILITIES)
    assert not peer.connection.has_capability("per_consumer_qos")
    said: list[dict[str, Any]] = [{}, {"capabilities": "all of them"}, {"capabilities": {"connection.blocked": "yes"}}]
    for properties in said:
        other = Peer()
        other.say(PROTOCOL_HEADER, commands.Connection.StartOk(properties, "PLAIN", "\0guest\0guest"))
        assert not other.connection.has_capability("connection.blocked")


def test_limits_that_nobody_can_keep() -> None:
    """Contradictory limits are refused when they are configured."""
    with pytest.raises(ValueError, match="frame_max_bytes"):
        ConnectionLimits(frame_max_bytes=4095)
    with pytest.raises(ValueError, match="channel_max"):
        ConnectionLimits(channel_max=65536)


def test_secret_is_updated() -> None:
    """The session gets the new secret, and a refused one is 530 in RabbitMQ's words."""
    peer = Peer().log_in()
    ((_, answer),) = peer.say(commands.Connection.UpdateSecret("new", "rotation"))
    assert answer.name == "Connection.UpdateSecretOk"
    assert peer.events[-1] == ("secret", b"new", "rotation")
    peer.session.raises["secret"] = Refused("expired")
    answers = peer.say(commands.Connection.UpdateSecret("old", "mistake"))
    assert closes(answers) == [(0, 530, "NOT_ALLOWED - New secret was refused by one of the backends")]


def held_peer(**announced: Any) -> Peer:
    """Return a client whose verdict is pending, and that has sent the next methods already."""
    peer = Peer()
    authenticate = peer.session.authenticate

    def hold(mechanism: str, response: bytes) -> None:
        authenticate(mechanism, response)
        peer.connection.hold()

    peer.session.authenticate = hold  # type: ignore[method-assign]
    steps = [start_ok(**announced), commands.Connection.TuneOk(2047, 131072, 60), commands.Connection.Open("/")]
    answers = peer.say(PROTOCOL_HEADER + b"".join(method_frame(0, step) for step in steps))
    assert [answer.name for _, answer in answers] == ["Connection.Start"]
    return peer


def test_a_verdict_that_comes_later_lets_in() -> None:
    """The methods after the login wait for the verdict and are then processed."""
    peer = held_peer()
    peer.connection.admit()
    assert [answer.name for _, answer in peer.say(b"")] == ["Connection.Tune", "Connection.OpenOk"]
    peer.connection.admit()
    assert peer.say(b"") == []


def test_a_refusal_that_comes_later_ends_the_connection() -> None:
    """The methods after a refused login are not processed."""
    peer = held_peer(authentication_failure_close=True)
    peer.connection.refuse(Refused("no"), "PLAIN")
    ((_, close),) = peer.say(b"")
    assert (close.name, close.reply_code) == ("Connection.Close", 403)
    assert peer.say(commands.Connection.CloseOk()) == []
    assert peer.connection.finished and ("open", "/") not in peer.events


def test_a_verdict_for_a_client_that_is_gone_changes_nothing() -> None:
    """A verdict of either kind for a lost client has no effect."""
    for verdict in (lambda peer: peer.connection.admit(), lambda peer: peer.connection.refuse(Refused("no"), "PLAIN")):
        peer = held_peer()
        peer.connection.lost()
        verdict(peer)
        assert peer.connection.finished and peer.connection.take_output() == []
        assert peer.events.count(("closed",)) == 1
