"""The publish cache and the cache of composite routes: admission, replacement, eviction."""

import pytest

from broker.routing.cache import EXCHANGES_MAX, CacheLimits, CompositeCache, PublishCache
from broker.routing.cache import ResolvedPublish as Entry
from broker.routing.route import Route

NOTHING = Entry(Route(()))


def new_cache(limits: CacheLimits | None = None) -> PublishCache[Entry, Entry]:
    """Return an empty publish cache."""
    return PublishCache(NOTHING, limits)


def test_publish_cache_takes_live_routes_on_second_sight() -> None:
    """A live route is cached at its second use; a dead route is not cached and does not count as a use."""
    cache = new_cache()
    dead, live = Entry(Route(())), Entry(Route((), live=True))
    assert not cache.offer(b"p", dead)
    assert not cache.offer(b"p", dead)
    assert not cache.offer(b"p", live)
    assert cache.offer(b"p", live)
    assert cache.entries == {b"p": live}
    assert not cache.offer(b"first", live)


def test_forgotten_first_misses_count_no_more() -> None:
    """A key that missed once before they were forgotten is cached at its second miss afterwards; entries stay."""
    cache = new_cache()
    live = Entry(Route((), live=True))
    for payload in (b"cached", b"cached", b"missed"):
        cache.offer(payload, live)
    cache.forget_misses()
    assert [cache.offer(b"missed", live) for _ in range(2)] == [False, True]
    assert set(cache.entries) == {b"cached", b"missed"}


def test_publish_cache_replaces_a_dead_entry() -> None:
    """A new route replaces a dead entry at once, and the new size is charged."""
    cache = new_cache()
    old, new = Entry(Route(("q",) * 100, live=True)), Entry(Route(("q",), live=True))
    for _ in range(2):
        cache.offer(b"p", old)
    used_bytes = cache.used_bytes
    old.route.end()
    assert cache.entries == {b"p": NOTHING}
    assert cache.used_bytes == used_bytes - 100 * 16
    assert cache.offer(b"p", new)
    assert cache.entries[b"p"] is new
    assert cache.used_bytes == used_bytes - 99 * 16
    assert not cache.offer(b"p", Entry(Route(())))
    assert (len(cache.entries), cache.used_bytes) == (0, 0)


def test_what_an_exchanges_name_comes_to_is_forgotten_with_the_entries() -> None:
    """Cached exchange names depend on a user's rights like the entries; above a limit all names are dropped."""
    cache = new_cache()
    standing = Route((), live=True)
    cache.add_exchange(b"\x01x", Entry(standing))
    cache.drop_all()
    assert cache.exchanges == {}
    for number in range(EXCHANGES_MAX + 1):
        cache.add_exchange(str(number).encode(), Entry(standing))
    (left,) = cache.exchanges.values()
    assert (left.key, standing.dependents) == (str(EXCHANGES_MAX).encode(), {left: None})
    standing.end()
    assert cache.exchanges == {}


@pytest.mark.parametrize("payload_bytes", [10, 500])
def test_publish_cache_is_bounded(payload_bytes: int) -> None:
    """The cache is bounded in entries and bytes and keeps the newest entry."""
    limits = CacheLimits(entries=32, cache_bytes=16 * 1024)
    cache = new_cache(limits)
    route = Route(("q",), live=True)
    for number in range(200):
        payload = str(number).encode().ljust(payload_bytes)
        cache.offer(payload, Entry(route))
        assert cache.offer(payload, Entry(route))
        assert len(cache.entries) <= 32
        assert cache.used_bytes <= limits.cache_bytes
        assert payload in cache.entries
    assert isinstance(route.dependents, dict)
    assert list(route.dependents) == list(cache.entries.values())
    cache.drop_all()
    assert (len(cache.entries), cache.used_bytes, route.dependents) == (0, 0, {})


def test_evicted_composites_are_forgotten_by_their_parts() -> None:
    """The cache is bounded, and so are the references that a long-lived part holds."""
    cache = CompositeCache(CacheLimits(entries=16))
    part = Route((), live=True)
    for number in range(200):
        for _ in range(2):
            cache.offer(("x", str(number)), ("q",), [part])
    assert len(cache.entries) <= 16
    assert isinstance(part.dependents, dict)
    assert list(part.dependents) == list(cache.entries.values())
    part.end()
    assert not any(route.live for route in cache.entries.values())


def test_a_composite_beyond_the_limit_is_used_once() -> None:
    """It has its destinations, is not live, and its parts do not refer to it."""
    cache = CompositeCache(CacheLimits(cache_bytes=0))
    part = Route((), live=True)
    for _ in range(3):
        route = cache.offer(("x", "k"), ("q",), [part])
        assert not route.live
        assert route.destinations == ("q",)
    assert part.dependents is None
