"""URLs of brokers."""

from __future__ import annotations

import pytest

from broker.client.address import AmqpAddress, BadAddress


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("amqp://h", "amqp://guest@h:5672/%2F"),
        ("amqps://u%40:p%2F@[::1]:7/a%2Fb?verify=verify_none", "amqps://u@@[::1]:7/a%2Fb"),
        ("amqp://u:p@h/", "amqp://u@h:5672/%2F"),
    ],
)
def test_addresses(url: str, address: str) -> None:
    """A URL has the address and the login; the text of an address has no password."""
    assert str(AmqpAddress.parse(url)) == address


@pytest.mark.parametrize(
    "url", ["http://h", "amqp://", "amqp://h:port", "h:5672", "amqp://h?verify=maybe", "amqp://h?colour=red"]
)
def test_addresses_that_are_none(url: str) -> None:
    """An invalid URL is refused with one line."""
    with pytest.raises(BadAddress) as caught:
        AmqpAddress.parse(url)
    assert "\n" not in str(caught.value)
