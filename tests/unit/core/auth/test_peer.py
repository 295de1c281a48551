"""The peer of a connection: its address, its name and its network."""

from __future__ import annotations

import pytest

from broker.core.auth.peer import Peer, is_loopback


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
    """An IPv4 address inside an IPv6 address counts as itself; an unreadable address is not loopback."""
    assert is_loopback(address) is loopback


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (Peer("10.0.0.1", 1234, "10.0.0.2", 5672), "10.0.0.1:1234 -> 10.0.0.2:5672"),
        (Peer("::1", 1234, "::1", 5672), "[::1]:1234 -> [::1]:5672"),
    ],
)
def test_a_connection_is_named_after_both_ends(peer: Peer, name: str) -> None:
    """A connection has the name that RabbitMQ gives it."""
    assert peer.name == name


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "", True),
    ],
)
def test_addresses_that_one_host_may_choose_from_are_one_network(one: str, other: str, same: bool) -> None:
    """An IPv6 /64 counts as one network."""
    assert (Peer(one).network == Peer(other).network) is same
