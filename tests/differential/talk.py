"""The base class of Speaker: opens connections, sends requests and waits for answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.broker_process import BrokerAddress
from tests.differential.link import CAPABILITIES, Channel, Heard, Link

__all__ = ["PROBE", "UNASKED", "Manner", "Talk"]

PROBE: Final = 99
"""The channel whose round trip shows that the broker has read the connection's bytes."""
UNASKED: Final = frozenset(("basic.deliver", "basic.return", "basic.ack", "basic.nack", "basic.cancel"))
"""The methods that a broker sends without a request."""
_HANDSHAKE_MS: Final = 8000
"""More than the three seconds that RabbitMQ waits before it closes a refused connection."""


@dataclass(frozen=True, slots=True)
class Manner:
    """The rules for deciding that a broker has sent all its answers.

    A step ends after `quiet_ms` without a frame. `patience_ms` limits the wait for a reply or, with a recording, for
    the recorded answers. `probe` adds a round trip on each connection after each step.
    """

    quiet_ms: int
    patience_ms: int
    probe: bool = False


class Talk:
    """The connections to one broker, and everything received on them."""

    def __init__(self, address: BrokerAddress, manner: Manner) -> None:
        self.address = address
        self.manner = manner
        self.links: dict[str, Link] = {}
        self._all: list[tuple[Link, Heard]] = []
        self._news = asyncio.Event()

    def heard(self, link: Link, heard: Heard) -> None:
        """Store a received method, and answer a close on a connection or channel outside the conversation."""
        self._all.append((link, heard))
        self._news.set()
        if not link.muted and heard.channel != PROBE:
            self.noted(link, heard)
        elif heard.name == "channel.close":
            link.method(heard.channel, "channel.close-ok", {})
            link.channels[heard.channel] = Channel()
        elif heard.name == "connection.close":
            link.method(0, "connection.close-ok", {})
            link.ending = True

    def noted(self, link: Link, heard: Heard) -> None:
        """Process a method of the conversation."""
        raise NotImplementedError

    async def _wait(self, condition: Callable[[], bool], patience_ms: float) -> bool:
        end = time.monotonic() + patience_ms / 1000
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                continue
        return True

    def _more_than(self, count: int) -> bool:
        return len(self._all) > count

    async def _ask(self, link: Link, channel: int, name: str, fields: dict[str, Any]) -> Heard | None:
        """Send a method outside the conversation, and return its answer."""
        before = len(self._all)
        answers: list[Heard] = []

        def answered() -> bool:
            fresh = (one for of, one in self._all[before:] if of is link)
            answers[:] = [one for one in fresh if one.channel in (channel, 0) and one.name not in UNASKED]
            return bool(answers)

        link.method(channel, name, fields)
        await self._wait(answered, self.manner.patience_ms)
        return answers[0] if answers else None

    async def _handshake(self, link: Link, options: dict[str, Any]) -> None:
        """Open a connection as far as the broker allows."""
        protocol = bytes.fromhex(options.get("protocol", "")) or b"AMQP\x00\x00\x09\x01"
        await link.dial(self.address, protocol)
        if not await self._came(link, "connection.start") or options.get("stop") == "start":
            return
        user, password = options.get("user", self.address.user), options.get("password", self.address.password)
        capabilities = options.get("capabilities", CAPABILITIES)
        response = options.get("response", f"\0{user}\0{password}")
        link.method(
            0,
            "connection.start-ok",
            {
                "client_properties": {"product": "differential test", "capabilities": capabilities},
                "mechanism": options.get("mechanism", "PLAIN"),
                "response": response,
                "locale": options.get("locale", "en_US"),
            },
        )
        if not await self._came(link, "connection.tune") or options.get("stop") == "tune":
            return
        offered = next(one for _, one in reversed(self._all) if one.name == "connection.tune").fields
        limits = {key: options.get(key, offered[key]) for key in ("channel_max", "frame_max")}
        link.frame_max_bytes = min(limits["frame_max"], 131_072) or 131_072
        link.method(0, "connection.tune-ok", limits | {"heartbeat": options.get("heartbeat", 0)})
        if options.get("stop") != "open":
            link.method(0, "connection.open", {"virtual_host": options.get("vhost", "/")})
            await self._came(link, "connection.open-ok")

    async def _came(self, link: Link, name: str) -> bool:
        """Wait for a method of the handshake; return whether it arrived before the connection ended."""
        before = len(self._all)

        def fresh() -> set[str]:
            return {one.name for of, one in self._all[before:] if of is link}

        ends = {name, "gone", "connection.close"}
        await self._wait(lambda: bool(fresh() & ends), max(self.manner.patience_ms, _HANDSHAKE_MS))
        return name in fresh()
