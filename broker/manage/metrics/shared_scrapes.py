"""Shared scrapes: one scrape runs at a time, and equal requests share its text.

A scrape reads all objects of the broker and needs no login. Sharing bounds what anonymous requests can cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from typing import Final
from weakref import WeakValueDictionary  # of locks

from broker.event_log import get_logger
from broker.manage.answers import PieceResponse, Response
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.client import ApiClient
from broker.manage.metrics.metric import CONTENT_TYPE
from broker.manage.metrics.scrape import FAMILY_NAMES, Scrape

KEPT_MAX_BYTES: Final = 64 << 20  # the memory for texts that are shared or still being read
PIECE_BYTES: Final = 64 << 10
REST_RATIO: Final = 3  # a network waits this many times the duration of its last scrape before the next one

Make = Callable[[], AsyncGenerator[str, None]]

_log = get_logger()


class ScrapeText:
    """The text of one scrape, and its readers."""

    def __init__(self, pieces: list[bytes], made_s: float) -> None:
        self.pieces = pieces
        self.made_s = made_s
        self.size_bytes = sum([len(piece) for piece in pieces])
        self.readers: dict[ApiClient, None] = {}


class SharedScrapes:
    """Run scrapes one at a time, and share their texts.

    After a scrape, the network that requested it waits before the next one. The memory for texts is limited: if there
    is no room, the oldest texts are dropped and their readers are disconnected.
    """

    def __init__(self, kept_max_bytes: int = KEPT_MAX_BYTES) -> None:
        """`kept_max_bytes` limits the memory for all texts; a larger text is kept alone."""
        self._kept_max_bytes = kept_max_bytes
        self._newest: dict[Hashable, ScrapeText] = {}
        self._kept: dict[ScrapeText, None] = {}  # the newest texts and those being read, oldest first
        self._making: dict[Hashable, asyncio.Future[ScrapeText | None]] = {}
        self._turn = asyncio.Lock()
        self._networks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def pieces(
        self, key: Hashable, client: ApiClient, make: Make, shared_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the newest text of a key. If it is older than `shared_s`, yield the text of a new scrape by `make`."""
        text = await self._text(key, client.peer.network, make, shared_s)
        while not text.pieces:  # the text was dropped while this client waited
            text = await self._text(key, client.peer.network, make, shared_s)
        text.readers[client] = None
        self._kept.setdefault(text)
        try:
            for piece in text.pieces:
                yield piece
        finally:
            text.readers.pop(client, None)
            self._drop_unused(text)

    async def _text(self, key: Hashable, network: str, make: Make, shared_s: float) -> ScrapeText:
        loop = asyncio.get_running_loop()
        while True:
            found = self._newest.get(key)
            if found is not None and loop.time() - found.made_s < shared_s:
                return found
            making = self._making.get(key)
            if making is None:
                break
            found = await asyncio.shield(making)
            if found is not None:  # None: the scrape failed, or its client has disconnected
                return found
        made = self._making[key] = loop.create_future()
        text: ScrapeText | None = None
        try:
            text = await self._scrape_in_turn(network, make)
            self._newest[key] = text
            loop.call_later(shared_s, self._expire, key, text)
            return text
        finally:
            del self._making[key]
            made.set_result(text)

    async def _scrape_in_turn(self, network: str, make: Make) -> ScrapeText:
        loop = asyncio.get_running_loop()
        own_turn = self._networks.get(network)
        if own_turn is None:
            own_turn = self._networks[network] = asyncio.Lock()
        await own_turn.acquire()
        took_s = 0.0
        try:
            async with self._turn:
                begun_s = loop.time()
                try:
                    return await self._scrape(make)
                finally:
                    took_s = loop.time() - begun_s
        finally:
            loop.call_later(REST_RATIO * took_s, own_turn.release)

    async def _scrape(self, make: Make) -> ScrapeText:
        pieces, piece = [], bytearray()
        async with aclosing(make()) as lines:
            async for line in lines:
                piece += line.encode()
                if len(piece) >= PIECE_BYTES:
                    pieces.append(bytes(piece))
                    piece.clear()
        pieces.append(bytes(piece))
        text = ScrapeText(pieces, asyncio.get_running_loop().time())
        self._make_room(text.size_bytes)
        self._kept[text] = None
        return text

    def _make_room(self, size_bytes: int) -> None:
        """Drop the oldest texts until there is room for one of this size."""
        room_bytes = self._kept_max_bytes - size_bytes - sum([text.size_bytes for text in self._kept])
        for text in list(self._kept):
            if room_bytes >= 0:
                return
            for client in text.readers:
                _log.warning("http.client_dropped", conn=client.peer.name, reason="it reads a scrape too slowly")
                client.abort()
            text.pieces.clear()  # the generators of readers may still run
            del self._kept[text]
            self._newest = {key: newest for key, newest in self._newest.items() if newest is not text}
            room_bytes += text.size_bytes

    def _expire(self, key: Hashable, text: ScrapeText) -> None:
        if self._newest.get(key) is text:
            del self._newest[key]
        self._drop_unused(text)

    def _drop_unused(self, text: ScrapeText) -> None:
        """Drop a text without readers that is no longer shared."""
        if not text.readers and text not in self._newest.values():
            self._kept.pop(text, None)


def metric_routes() -> list[ApiRoute]:
    """Return the routes for metrics, which share their scrapes."""
    shared = SharedScrapes()

    def answer(call: Call, key: Hashable, make: Make) -> Response:
        shared_s = call.broker.settings().metrics.shared_ms / 1000
        return PieceResponse(shared.pieces(key, call.client, make, shared_s), media_type=CONTENT_TYPE)

    async def aggregated(call: Call) -> Response:
        return answer(call, "aggregated", lambda: Scrape(call.broker).aggregated())

    async def per_object(call: Call) -> Response:
        return answer(call, "per-object", lambda: Scrape(call.broker).per_object())

    async def detailed(call: Call) -> Response:
        families, names = FAMILY_NAMES & set(call.every("family")), call.every("vhost")
        vhosts = frozenset(call.broker.administration.vhosts.keys() & set(names)) if names else None
        return answer(call, ("detailed", families, vhosts), lambda: Scrape(call.broker).detailed(families, vhosts))

    return [
        ApiRoute("GET", "/metrics", Needs.NOTHING, aggregated),
        ApiRoute("GET", "/metrics/per-object", Needs.NOTHING, per_object),
        ApiRoute("GET", "/metrics/detailed", Needs.NOTHING, detailed, repeats=("family", "vhost")),
    ]
