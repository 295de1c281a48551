"""The publish cache and that of routes through several exchanges: what is taken in, replaced, evicted."""

from dataclasses import dataclass

import pytest

from broker.routing.cache import EXCHANGES_MAX, CacheLimits, CompositeCache, PublishCache
from broker.routing.route import Route


@dataclass(slots=True)
class Entry:
    """What a session keeps per publish payload."""

    route: Route


def test_publish_cache_takes_live_routes_on_second_sight() -> None:
    """A dead route is never kept, and to offer it is no sight."""
    cache: PublishCache[Entry, str] = PublishCache()
    dead, live = Entry(Route(())), Entry(Route((), live=True))
    assert not cache.offer(b"p", dead)
    assert not cache.offer(b"p", dead)
    assert not cache.offer(b"p", live)
    assert cache.offer(b"p", live)
    assert cache.entries == {b"p": live}
    assert not cache.offer(b"first", live)


def test_publish_cache_replaces_a_dead_entry() -> None:
    """What was resolved anew takes the place of the dead one at once, with the space of the new one."""
    cache: PublishCache[Entry, str] = PublishCache()
    old, new = Entry(Route(("q",) * 100, live=True)), Entry(Route(("q",), live=True))
    for _ in range(2):
        cache.offer(b"p", old)
    used_bytes = cache.used_bytes
    old.route.end()
    assert cache.offer(b"p", new)
    assert cache.entries[b"p"] is new
    assert cache.used_bytes == used_bytes - 99 * 16
    assert not cache.offer(b"p", Entry(Route(())))
    assert (len(cache), cache.used_bytes) == (0, 0)


def test_what_an_exchanges_name_comes_to_is_forgotten_with_the_entries() -> None:
    """Both rest on a user's rights; and of very many names all are given up, so that they are bounded."""
    cache: PublishCache[Entry, str] = PublishCache()
    cache.know_exchange(b"\x01x", "x")
    cache.drop_all()
    assert cache.exchanges == {}
    for number in range(EXCHANGES_MAX + 1):
        cache.know_exchange(str(number).encode(), "")
    assert list(cache.exchanges) == [str(EXCHANGES_MAX).encode()]


@pytest.mark.parametrize("payload_bytes", [10, 500])
def test_publish_cache_is_bounded(payload_bytes: int) -> None:
    """Neither many nor long payloads pass the bounds, and the newest is there."""
    limits = CacheLimits(entries=32, cache_bytes=16 * 1024)
    cache: PublishCache[Entry, str] = PublishCache(limits)
    entry = Entry(Route(("q",), live=True))
    for number in range(200):
        payload = str(number).encode().ljust(payload_bytes)
        cache.offer(payload, entry)
        assert cache.offer(payload, entry)
        assert len(cache) <= 32
        assert cache.used_bytes <= limits.cache_bytes
        assert payload in cache.entries
    cache.drop_all()
    assert (len(cache), cache.used_bytes) == (0, 0)


def test_composites_live_as_their_parts() -> None:
    """One that ended gives way at once to what is made anew; with a dead part there is nothing to keep."""
    cache = CompositeCache()
    part = Route((), live=True)
    assert not cache.offer(("x", "k"), ("q",), [part]).live
    route = cache.offer(("x", "k"), ("q",), [part])
    assert route.live
    assert cache.entries == {("x", "k"): route}
    part.end()
    assert not route.live
    new = Route((), live=True)
    again = cache.offer(("x", "k"), ("r",), [new])
    assert again.live
    assert cache.entries == {("x", "k"): again}
    new.end()
    assert not cache.offer(("x", "k"), ("r",), [new]).live
    assert (len(cache), cache.used_bytes) == (0, 0)


def test_evicted_composites_are_forgotten_by_their_parts() -> None:
    """The cache is bounded, and so is what a lasting part remembers."""
    cache = CompositeCache(CacheLimits(entries=16))
    part = Route((), live=True)
    for number in range(200):
        for _ in range(2):
            cache.offer(("x", str(number)), ("q",), [part])
    assert len(cache) <= 16
    assert part.made is not None
    assert list(part.made) == list(cache.entries.values())
    part.end()
    assert not any(route.live for route in cache.entries.values())
