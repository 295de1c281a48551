"""Scrapes are made one at a time and shared, and what is made does not grow with those who ask or do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from broker.core.auth.peer import Peer
from broker.manage.client import ApiClient
from broker.manage.metrics.shared_scrapes import SharedScrapes
from tests.deadline import DEADLINE_S

ALICE, BOB = "192.0.2.1", "192.0.2.2"


class Broker:
    """Counts the scrapes that are made, and those that are made at the same time. Each has three lines."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.running = self.most = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def scrape(self, name: str) -> AsyncGenerator[str, None]:
        """Make a scrape."""
        self.running += 1
        self.most = max(self.most, self.running)
        self.made.append(name)
        try:
            for number in range(3):
                await self.go_on.wait()
                await asyncio.sleep(0)
                yield f"{name} {len(self.made)}.{number}\n"
        finally:
            self.running -= 1


class Scrapers:
    """Clients of one port."""

    def __init__(self, kept_max_bytes: int = 1 << 20) -> None:
        self.broker = Broker()
        self.shared = SharedScrapes(kept_max_bytes)
        self.aborted: list[str] = []

    def pieces(self, key: str, address: str = ALICE, shared_s: float = 3600.0) -> AsyncGenerator[bytes, None]:
        """Ask for a scrape."""
        client = ApiClient(Peer(address), lambda: False, lambda: self.aborted.append(key), DEADLINE_S)
        return self.shared.pieces(key, client, lambda: self.broker.scrape(key), shared_s)

    async def text(self, key: str, address: str = ALICE, shared_s: float = 3600.0) -> str:
        """Ask for a scrape and read it."""
        async with aclosing(self.pieces(key, address, shared_s)) as pieces:
            return b"".join([piece async for piece in pieces]).decode()


@pytest.mark.parametrize("shared_s", [3600.0, 0.0])
async def test_all_who_ask_at_the_same_time_share_one_text(shared_s: float) -> None:
    """Also if no one shares it later."""
    scrapers = Scrapers()
    texts = await asyncio.gather(*[scrapers.text("per-object", f"192.0.2.{n}", shared_s) for n in range(60)])
    assert set(texts) == {"per-object 1.0\nper-object 1.1\nper-object 1.2\n"}
    await scrapers.text("per-object", BOB, shared_s)
    assert len(scrapers.broker.made) == (1 if shared_s else 2)


async def test_different_scrapes_are_made_one_at_a_time_and_networks_take_turns() -> None:
    """One that asks for ten different ones delays another's by one."""
    scrapers = Scrapers()
    scrapers.broker.go_on.clear()
    floods = [asyncio.ensure_future(scrapers.text(f"flood{number}")) for number in range(10)]
    await asyncio.sleep(0)
    other = asyncio.ensure_future(scrapers.text("mine", BOB))
    await asyncio.sleep(0)
    scrapers.broker.go_on.set()
    assert await other == "mine 2.0\nmine 2.1\nmine 2.2\n"
    await asyncio.gather(*floods)
    assert (len(scrapers.broker.made), scrapers.broker.most) == (11, 1)


async def test_one_who_leaves_takes_the_scrape_from_nobody() -> None:
    """The next one who waits has it made."""
    scrapers = Scrapers()
    scrapers.broker.go_on.clear()
    first = asyncio.ensure_future(scrapers.text("per-object"))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(scrapers.text("per-object"))
    await asyncio.sleep(0)
    first.cancel()
    scrapers.broker.go_on.set()
    assert (await second).startswith("per-object 2.0")
    assert scrapers.broker.running == 0


async def test_scrapers_that_do_not_read_hold_few_texts() -> None:
    """The readers of the oldest text are disconnected; one who reads has what is new."""
    scrapers = Scrapers(kept_max_bytes=100)
    silent = []
    for number in range(50):
        for _ in range(3):
            silent.append(scrapers.pieces(f"slow{number:02}"))
            await anext(silent[-1])
        assert sum(text.size_bytes for text in scrapers.shared._kept) <= 100
    assert scrapers.aborted[:4] == ["slow00"] * 3 + ["slow01"] and len(scrapers.aborted) > 3 * 45
    assert await scrapers.text("mine", BOB) == "mine 51.0\nmine 51.1\nmine 51.2\n"
    for pieces in silent:
        await pieces.aclose()


async def test_a_text_is_forgotten_when_nobody_reads_it_any_more() -> None:
    """After its time a text is kept for its readers only."""
    scrapers = Scrapers()
    reading = scrapers.pieces("per-object", ALICE, 0.0)
    await anext(reading)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(scrapers.shared._kept) == 1 and not scrapers.shared._newest
    await reading.aclose()
    assert not scrapers.shared._kept
