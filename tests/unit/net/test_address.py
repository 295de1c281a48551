"""The addresses that a broker listens on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest
import uvloop

from broker.net.address import CannotListen, bind, close, close_servers, listen


def is_reached(bound: list[socket.socket], address: str, port: int) -> bool:
    """Return whether one of our sockets accepts; another process may listen on this port of the other family."""
    try:
        with socket.create_connection((address, port), timeout=5) as client:
            for one in bound:
                with suppress(BlockingIOError):
                    accepted, peer = one.accept()
                    accepted.close()
                    return bool(peer[1] == client.getsockname()[1])
    except OSError:
        pass
    return False


@pytest.mark.parametrize(
    ("host", "reached"),
    [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("0.0.0.0", ["127.0.0.1"]), ("127.0.0.1", ["127.0.0.1"])],
)
def test_a_host_is_reached_by_its_addresses(host: str, reached: list[str]) -> None:
    """`::` listens on every address, IPv4 included, as the settings file says."""
    bound = bind(host, 0)
    try:
        for one in bound:
            one.listen()
            one.setblocking(False)
        port = bound[0].getsockname()[1]
        assert [address for address in ("127.0.0.1", "::1") if is_reached(bound, address, port)] == reached
    finally:
        close(bound)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("203.0.113.1", "cannot listen on 203.0.113.1:5672 (server.host): Cannot assign requested address"),
        ("2001:db8::1", "cannot listen on [2001:db8::1]:5672 (server.host): Cannot assign requested address"),
        ("no.such.host.invalid", "cannot listen on no.such.host.invalid:5672 (server.host): no such address: "),
        ("a" * 300, "(server.host): no such address: "),
        ("a\0b", "(server.host): no such address: "),
    ],
)
def test_an_address_that_cannot_be_bound_is_named(host: str, said: str) -> None:
    """The error has address, port, setting and reason, whatever the system's error is."""
    with pytest.raises(CannotListen) as refused:
        bind(host, 5672)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_address_that_another_took_meanwhile_is_named() -> None:
    """Two brokers may bind one port; the second one to listen is refused, and its error names the address."""
    (first,) = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    (second,) = bind("127.0.0.1", port)
    try:
        first.listen()
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listen(second, 1)
    finally:
        close([first, second])


class HangsUp(asyncio.Protocol):
    """The broker's end of a connection, which it ends at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End the connection."""
        transport.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("turns", range(4))
def test_who_connects_while_the_servers_close_is_answered_or_refused(
    new_loop: Callable[[], asyncio.AbstractEventLoop], turns: int
) -> None:
    """No socket stays open and forgotten, in whichever turn after the connect the servers close."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(HangsUp, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            close_servers([server])
            client.settimeout(5)
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""
        assert not server.is_serving()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
