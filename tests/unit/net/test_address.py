"""The addresses that a broker listens on."""

from __future__ import annotations

import socket

import pytest

from broker.net.address import bind, close


@pytest.mark.parametrize(
    ("host", "reached"),
    [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("0.0.0.0", ["127.0.0.1"]), ("127.0.0.1", ["127.0.0.1"])],
)
def test_a_host_is_reached_by_its_addresses(host: str, reached: list[str]) -> None:
    """`::` is every address, those of IPv4 among them, as the settings file says."""
    bound = bind(host, 0)
    try:
        for one in bound:
            one.listen()
        port = bound[0].getsockname()[1]
        found = []
        for address in ("127.0.0.1", "::1"):
            try:
                socket.create_connection((address, port), timeout=5).close()
            except OSError:
                continue
            found.append(address)
        assert found == reached
    finally:
        close(bound)
