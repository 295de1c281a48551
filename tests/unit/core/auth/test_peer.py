"""The peer of a connection: its address, its name, its network, and the names in its certificate."""

from __future__ import annotations

import pytest

from broker.core.auth.peer import Peer, distinguished_name, is_loopback, login_name


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


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (((("countryName", "DE"),), (("commonName", "a"),)), "CN=a,C=DE"),
        (((("commonName", "a"), ("userId", "7")),), "CN=a+UID=7"),
        (((("commonName", ' a,b+"c"\\<d>; '),),), 'CN=\\ a\\,b\\+\\"c\\"\\\\\\<d\\>\\;\\ '),
        (((("commonName", "#a"),),), "CN=\\#a"),
        (((("1.2.3.4", "a"),),), "1.2.3.4=a"),
        ((), ""),
    ],
)
def test_a_distinguished_name_is_written_as_rabbitmq_writes_it(subject: tuple, text: str) -> None:
    """A distinguished name follows RFC 4514: most specific part first, with a backslash before special characters."""
    assert distinguished_name(subject) == text


def test_a_certificate_without_the_name_that_is_asked_for_has_none() -> None:
    """A certificate that lacks the configured name yields no name; no other name replaces it."""
    assert login_name({"subject": ((("organizationName", "a"),),)}, "common_name") is None
    assert login_name({"subject": ((("commonName", ""),),)}, "common_name") is None
    assert login_name({"subject": ((("commonName", "a"),),)}, "subject_alternative_name") is None
    assert login_name({}, "distinguished_name") is None
