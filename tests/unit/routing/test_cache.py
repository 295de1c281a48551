"""The route caches: admission, bounds, bypass."""

from dataclasses import dataclass

import pytest

from broker.routing.cache import ENTRY_BYTES, CacheLimits, CompositeCache, PublishCache, RouteCache
from broker.routing.route import Route


@dataclass(slots=True)
class Entry:
    """What a session keeps per publish payload."""

    route: Route


def test_first_sight_is_not_admitted() -> None:
    """A key is cached when it comes for the second time; before that its route is never live."""
    cache = RouteCache()
    first = cache.offer("k", ("q",))
    assert not first.live
    assert len(cache) == 0
    second = cache.offer("k", ("q",))
    assert second.live
    assert cache.entries["k"] is second
    assert (cache.hits, cache.misses) == (0, 2)


def test_drop_clears_live_and_space() -> None:
    """Whoever still holds a dropped route sees it; the others stay."""
    cache = RouteCache()
    held = {}
    for key in ("a", "b", "c"):
        cache.offer(key, ("q",))
        held[key] = cache.offer(key, ("q",))
    used_bytes = cache.used_bytes
    cache.drop("a")
    cache.drop("never there")
    assert [held[key].live for key in "abc"] == [False, True, True]
    assert cache.used_bytes == used_bytes * 2 // 3
    cache.drop_all()
    assert not any(route.live for route in held.values())
    assert (len(cache), cache.used_bytes) == (0, 0)


def test_entries_are_bounded_and_the_evicted_are_dead() -> None:
    """A full cache gives up its oldest; a publish cache that holds one of those must not trust it."""
    cache = RouteCache(CacheLimits(entries=16))
    routes = []
    for number in range(100):
        cache.offer(str(number), ())
        routes.append(cache.offer(str(number), ()))
        assert len(cache) <= 16
    assert [route for route in routes if route.live] == list(cache.entries.values())
    assert routes[-1].live
    assert len(cache) > 8


def test_bytes_are_bounded() -> None:
    """Long keys and large fan-outs count; what alone passes the bound is not taken in and evicts nothing."""
    limits = CacheLimits(cache_bytes=20 * ENTRY_BYTES)
    cache = RouteCache(limits)
    for number in range(50):
        for _ in range(2):
            cache.offer(f"{number}." + "x" * 200, ("q",) * 10)
            assert cache.used_bytes <= limits.cache_bytes
    held = len(cache)
    assert 0 < held < 20
    cache.offer("wide", ("q",) * 10_000)
    assert not cache.offer("wide", ("q",) * 10_000).live
    assert len(cache) == held


def test_no_entries_at_all() -> None:
    """A cache of size zero is a way to turn it off."""
    cache = RouteCache(CacheLimits(entries=0))
    for _ in range(5):
        assert not cache.offer("k", ("q",)).live


def test_one_off_keys_end_in_the_bypass() -> None:
    """Keys that never return are not admitted, do not sweep out what is there, and stop being looked at for a while."""
    cache = RouteCache(CacheLimits(entries=64, window=100))
    for _ in range(2):
        cache.offer("hot", ("q",))
    for number in range(150):
        cache.offer(f"once {number}", ())
    assert cache.bypassed
    assert cache.entries["hot"].live
    for _ in range(3):
        assert not cache.offer("new", ("q",)).live
    for number in range(800):
        cache.offer(f"later {number}", ())
    assert not cache.bypassed
    assert not cache.offer("new", ("q",)).live
    assert cache.offer("new", ("q",)).live


def test_working_set_within_the_bound_is_cached_whole() -> None:
    """Keys that come round in turn, as many as fit, are all admitted on the second round."""
    cache = RouteCache(CacheLimits(entries=1024))
    for _ in range(2):
        for number in range(1000):
            cache.offer(str(number), ())
    assert len(cache) == 1000


def test_working_set_over_the_bound_ends_in_the_bypass() -> None:
    """When entries are evicted as fast as they come in, what is held stays and goes on to be hit."""
    cache = RouteCache(CacheLimits(entries=64, window=100))
    for number in range(2000):
        key = str(number // 2)
        if key not in cache.entries:
            cache.offer(key, ())
    assert cache.bypassed
    assert len(cache) > 32


def test_storm_of_bindings_ends_in_the_bypass() -> None:
    """A drop of everything after each publish makes admitting useless."""
    cache = RouteCache(CacheLimits(window=100))
    for _ in range(150):
        cache.offer("k", ("q",))
        cache.drop_all()
    assert cache.bypassed


def test_one_wildcard_binding_does_not_end_in_the_bypass() -> None:
    """After a single drop of everything the cache warms again at the next lookup of each key."""
    cache = RouteCache(CacheLimits(entries=1024, window=200))
    for _ in range(2):
        for number in range(90):
            cache.offer(str(number), ())
    cache.drop_all()
    for number in range(90):
        assert cache.offer(str(number), ()).live
    assert not cache.bypassed


def test_publish_cache_takes_live_routes_on_second_sight() -> None:
    """A dead route is never kept, whatever the sight."""
    cache: PublishCache[Entry] = PublishCache()
    dead, live = Entry(Route(())), Entry(Route((), live=True))
    assert not cache.offer(b"p", dead)
    assert not cache.offer(b"p", dead)
    assert cache.offer(b"p", live)
    assert cache.entries == {b"p": live}
    assert not cache.offer(b"first", live)
    assert cache.misses == 4


def test_publish_cache_replaces_a_dead_entry() -> None:
    """What was resolved anew takes the place of the dead one at once, with the space of the new one."""
    cache: PublishCache[Entry] = PublishCache()
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


@pytest.mark.parametrize("payload_bytes", [10, 500])
def test_publish_cache_is_bounded(payload_bytes: int) -> None:
    """Neither many nor long payloads pass the bounds, and the newest is there."""
    limits = CacheLimits(entries=32, cache_bytes=16 * 1024)
    cache: PublishCache[Entry] = PublishCache(limits)
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


def test_drop_where_ends_what_is_picked_out() -> None:
    """The others stay, and their space with them."""
    cache = RouteCache()
    for key in ("a", "b", "c"):
        cache.offer(key, ("q",))
        cache.offer(key, ("q",))
    routes = dict(cache.entries)
    cache.drop_where(lambda keys: [key for key in keys if key != "b"])
    assert {key: route.live for key, route in routes.items()} == {"a": False, "b": True, "c": False}
    assert list(cache.entries) == ["b"]
    assert cache.used_bytes == ENTRY_BYTES + 1 + 8


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
