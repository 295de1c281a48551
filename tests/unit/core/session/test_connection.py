"""The session of a connection: logging in, opening a vhost, and what ends with the connection."""

from __future__ import annotations

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from broker.core.auth.users import User
from tests.unit.core.room import GUEST, Client, Room, describe

REFUSED = (
    "connection 403 ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
    "For details see the broker logfile."
)


def test_a_refused_login_tells_the_client_little_and_the_log_why() -> None:
    """The client gets RabbitMQ's only text; the log gets the reason without the answer."""
    client = Room().knock("192.0.2.7")
    with capture_logs() as events:
        ((_, close),) = client.start(b"\0alice\0wrong")
    assert describe(close) == REFUSED
    (event,) = [event for event in events if event["event"] == "connection.refused"]
    assert event["reason"] == "PLAIN login refused: user 'alice' - invalid credentials"
    assert "wrong" not in str(event)


def test_an_answer_that_cannot_be_read_is_hung_up_on() -> None:
    """An unreadable answer closes the socket without a method, as in RabbitMQ, and the log has the reason."""
    client = Room().knock()
    with capture_logs() as events:
        assert client.start(b"guest\0guest") == []
    assert client.machine.finished
    (event,) = [event for event in events if event["event"] == "connection.refused"]
    assert event["reason"] == "PLAIN login refused: response invalid"


def test_a_configured_user_may_come_from_anywhere() -> None:
    """A configured user may log in from any address; only guest is restricted to the loopback."""
    assert Room().enter(User("alice", "secret"), "192.0.2.7").session.user == User("alice", "secret")


@pytest.mark.parametrize("end", ["lost", "leave", "fault"])
def test_exclusive_queues_go_however_the_connection_ends(end: str, room: Room, client: Client) -> None:
    """Exclusive queues are deleted after an orderly close, a lost transport and a fault alike."""
    client.call(1, commands.Queue.Declare(queue="mine", exclusive=True), commands.Queue.DeclareOk)
    if end == "lost":
        client.machine.lost()
    elif end == "leave":
        client.leave()
    else:
        client.tell(1, commands.Channel.Flow(active=False))
    assert not room.vhost.queues
    assert not room.vhost.queues._owned  # or the ended connection would never be freed
    room.enter().call(1, commands.Queue.Declare(queue="mine", exclusive=True), commands.Queue.DeclareOk)


def test_an_exclusive_queue_that_was_deleted_is_not_deleted_again(room: Room) -> None:
    """The connection forgets a deleted exclusive queue, so a new queue of that name elsewhere is not deleted."""
    first, second = room.enter(), room.enter()
    first.call(1, commands.Queue.Declare(queue="q", exclusive=True), commands.Queue.DeclareOk)
    first.call(1, commands.Queue.Delete(queue="q"), commands.Queue.DeleteOk)
    second.call(1, commands.Queue.Declare(queue="q", exclusive=True), commands.Queue.DeclareOk)
    first.leave()
    assert "q" in room.vhost.queues


def test_an_unexpected_exception_is_logged_and_ends_only_this_connection(room: Room) -> None:
    """An unexpected exception closes its connection with 541 and leaves the others alone."""
    victim, other = room.enter(), room.enter()
    victim.session.vhost = None
    with capture_logs() as events:
        ((_, close),) = victim.tell(2, commands.Channel.Open())
    assert describe(close).startswith("connection 541 INTERNAL_ERROR")
    (event,) = [event for event in events if event["event"] == "connection.crashed"]
    assert isinstance(event["exc_info"], AssertionError)
    other.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


def test_the_log_names_peer_user_and_vhost_and_no_password() -> None:
    """Every log event of a connection has peer, user and vhost, and no password."""
    with capture_logs() as events:
        Room().enter(GUEST).leave()
    opened = events[0]
    assert (opened["conn"], opened["user"], opened["vhost"]) == ("127.0.0.1:0 -> :0", "guest", "/")
    assert [event["event"] for event in events] == ["connection.opened", "connection.closed"]
