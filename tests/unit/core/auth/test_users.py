"""Checking a PLAIN answer, and where guest may come from."""

from __future__ import annotations

import pytest

from broker.amqp.errors import Refused
from broker.core.auth.users import User, Users, is_loopback, split_plain

USERS = Users([User("guest", "guest"), User("zo\u00eb", "p\u00e4ss"), User("open", "")])


@pytest.mark.parametrize(
    ("response", "peer", "name"),
    [
        (b"\0guest\0guest", "127.0.0.1", "guest"),
        (b"\0guest\0guest", "::1", "guest"),
        ("\0zo\u00eb\0p\u00e4ss".encode(), "203.0.113.9", "zo\u00eb"),
    ],
)
def test_the_right_answer_lets_in(response: bytes, peer: str, name: str) -> None:
    """Names and passwords are UTF-8."""
    assert USERS.authenticate("PLAIN", response, peer).name == name


@pytest.mark.parametrize(
    ("response", "peer", "reason"),
    [
        (b"\0guest\0Guest", "127.0.0.1", "user 'guest' - invalid credentials"),
        (b"\0nobody\0guest", "127.0.0.1", "user 'nobody' - invalid credentials"),
        (b"\0guest\0guest", "198.51.100.1", "user 'guest' can only connect via localhost"),
        (b"\0guest\0wrong", "198.51.100.1", "user 'guest' - invalid credentials"),
        (b"\0open\0", "127.0.0.1", "user 'open' attempted to log in with a blank password"),
    ],
)
def test_a_wrong_answer_does_not(response: bytes, peer: str, reason: str) -> None:
    """An empty password never lets in, not even where one is configured."""
    with pytest.raises(Refused) as refused:
        USERS.authenticate("PLAIN", response, peer)
    assert refused.value.reason == f"PLAIN login refused: {reason}"


def test_a_mechanism_that_is_not_offered_lets_nobody_in() -> None:
    """The answer is not even looked at."""
    with pytest.raises(Refused, match="ANONYMOUS login refused: unknown authentication mechanism"):
        USERS.authenticate("ANONYMOUS", b"\0guest\0guest", "127.0.0.1")


@pytest.mark.parametrize(
    "response", [b"", b"guest", b"\0guest", b"act-as\0guest\0guest", b"\0a\0b\0c", b"\0\xff\0guest"]
)
def test_an_answer_that_is_not_plain_is_refused_unquoted(response: bytes) -> None:
    """The reason goes to the log, so nothing of the answer is in it."""
    with pytest.raises(Refused) as refused:
        split_plain(response)
    assert refused.value.reason == "PLAIN login refused: response invalid"


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("fe80::1%lo", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_loopback_is_read_from_the_peers_address(address: str, loopback: bool) -> None:
    """An IPv4 address inside an IPv6 one counts as itself; what cannot be read does not count."""
    assert is_loopback(address) is loopback


def test_nobody_but_guest_is_bound_to_the_loopback_unless_told() -> None:
    """The names are the caller's choice."""
    users = Users([User("guest", "guest")], loopback_only=())
    assert users.authenticate("PLAIN", b"\0guest\0guest", "198.51.100.1").name == "guest"


def test_a_user_does_not_print_its_password() -> None:
    """What is logged by accident shows the name alone."""
    assert "s3cret" not in repr(User("alice", "s3cret"))
