"""The route cache of an exchange: admission, limits, bypass, and the effect of a changed pattern."""

import random
from collections.abc import Iterable

import pytest

from broker.routing.cache import ENTRY_BYTES, CacheLimits
from broker.routing.key_trie import KEY_BYTES, NODE_BYTES
from broker.routing.pattern import AMQP
from broker.routing.route import Route
from broker.routing.route_cache import (
    INDEXED_AT_ONCE,
    SCANNED_BYTES_MAX,
    SCANS_PER_VISIT,
    VISITS_MAX,
    VISITS_PER_ADMISSION,
    RouteCache,
)


def warm(cache: RouteCache, keys: Iterable[str], destinations: tuple[str, ...] = ("q",)) -> dict[str, Route]:
    """Cache the routes of these keys and return them."""
    routes = {}
    for key in keys:
        cache.offer(key, destinations)
        routes[key] = cache.offer(key, destinations)
    return routes


def change(cache: RouteCache, pattern: str) -> None:
    """Notify the cache that an AMQP pattern changed."""
    cache.end_matching(AMQP.parse(pattern).words, AMQP.words)


def test_first_sight_is_not_admitted() -> None:
    """A key is cached at its second lookup; before that its route is not live."""
    cache = RouteCache()
    first = cache.offer("k", ("q",))
    assert not first.live
    assert len(cache.entries) == 0
    second = cache.offer("k", ("q",))
    assert second.live
    assert cache.entries["k"] is second


def test_drop_clears_live_and_space() -> None:
    """A dropped route is not live, which its holders see; the others stay."""
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
    assert (len(cache.entries), cache.used_bytes) == (0, 0)


def test_bytes_are_bounded() -> None:
    """Long keys and large fan-outs are charged; a route beyond the limit is not cached and evicts nothing."""
    limits = CacheLimits(cache_bytes=20 * ENTRY_BYTES)
    cache = RouteCache(limits)
    for number in range(50):
        for _ in range(2):
            cache.offer(f"{number}." + "x" * 200, ("q",) * 10)
            assert cache.used_bytes <= limits.cache_bytes
    held = len(cache.entries)
    assert 0 < held < 20
    wide = ("q",) * 10_000
    for _ in range(2):
        route = cache.offer("wide", wide)
    assert not route.live
    assert route.destinations == wide
    assert len(cache.entries) == held


def test_no_entries_at_all() -> None:
    """A cache of size zero is off."""
    cache = RouteCache(CacheLimits(entries=0))
    for _ in range(5):
        route = cache.offer("k", ("q",))
        assert not route.live
        assert route.destinations == ("q",)


def test_one_off_keys_end_in_the_bypass() -> None:
    """Keys that never return are not cached, evict nothing, and turn on the bypass."""
    cache = RouteCache(CacheLimits(entries=64, window=100))
    for _ in range(2):
        cache.offer("hot", ("q",))
    for number in range(150):
        cache.offer(f"once {number}", ())
    assert cache.bypassed
    assert cache.entries["hot"].live
    for _ in range(3):
        assert not cache.offer("new", ("q",)).live
    while cache.bypassed:
        cache.offer("later", ())
    assert not cache.offer("new", ("q",)).live
    assert cache.offer("new", ("q",)).live


def test_pauses_grow_while_admitting_goes_on_to_be_useless() -> None:
    """The bypass lasts one window, then two, four and at most eight; after a useful window it is one again."""
    cache = RouteCache(CacheLimits(entries=64, window=100))
    numbers = iter(range(1_000_000))

    def pause() -> int:
        while not cache.bypassed:
            cache.offer(f"once {next(numbers)}", ())
        skipped = 0
        while cache.bypassed:
            cache.offer("", ())
            skipped += 1
        return skipped

    assert [pause() for _ in range(5)] == [100, 200, 400, 800, 800]
    for number in range(51):  # 102 misses, half of which are admitted
        cache.offer(f"{number}", ())
        cache.offer(f"{number}", ())
    assert pause() == 100


def test_working_set_within_the_bound_is_cached_whole() -> None:
    """Keys in rotation that fit into the cache are all cached in the second round."""
    cache = RouteCache(CacheLimits(entries=1024))
    for _ in range(2):
        for number in range(1000):
            cache.offer(str(number), ())
    assert len(cache.entries) == 1000


def test_working_set_over_the_bound_ends_in_the_bypass() -> None:
    """When routes are evicted as fast as they are cached, the cached ones stay and have hits."""
    cache = RouteCache(CacheLimits(entries=64, window=100))
    for number in range(2000):
        key = str(number // 2)
        if key not in cache.entries:
            cache.offer(key, ())
    assert cache.bypassed
    assert len(cache.entries) > 32


def test_storm_of_bindings_ends_in_the_bypass() -> None:
    """Dropping everything after each publish makes admission useless and turns on the bypass."""
    cache = RouteCache(CacheLimits(window=100))
    for _ in range(150):
        cache.offer("k", ("q",))
        cache.drop_all()
    assert cache.bypassed


def test_one_wildcard_binding_does_not_end_in_the_bypass() -> None:
    """After a single drop of everything, the next lookup of each key caches it again."""
    cache = RouteCache(CacheLimits(entries=1024, window=200))
    for _ in range(2):
        for number in range(90):
            cache.offer(str(number), ())
    cache.drop_all()
    for number in range(90):
        assert cache.offer(str(number), ()).live
    assert not cache.bypassed


# -- changed patterns --------------------------------------------------------------------------------------------------


def test_a_touched_key_keeps_its_place() -> None:
    """Its route ends and frees its destinations; the next lookup puts a live route there, at any admission state."""
    cache = RouteCache(CacheLimits(entries=64, window=100))
    routes = warm(cache, ["a.b", "a.c", "b.b"], ("q", "r"))
    change(cache, "*.b")
    used_bytes = cache.used_bytes
    assert {key: route.live for key, route in routes.items()} == {"a.b": False, "a.c": True, "b.b": False}
    assert cache.entries["a.b"].destinations == ()
    for number in range(150):
        cache.offer(f"once {number}", ())
    assert cache.bypassed
    route = cache.offer("a.b", ("q", "r", "s"))
    assert route.live
    assert cache.entries["a.b"] is route
    assert cache.used_bytes == used_bytes + 3 * 8


def test_a_touched_key_that_outgrows_the_bound_goes() -> None:
    """A route beyond the limit loses its place; one that only needs room gets it."""
    limits = CacheLimits(cache_bytes=8 * ENTRY_BYTES)
    cache = RouteCache(limits)
    warm(cache, ["a.0", "a.1", "b"])
    change(cache, "a.*")
    wide = cache.offer("a.0", ("q",) * 1000)
    assert not wide.live
    assert wide.destinations == ("q",) * 1000
    assert "a.0" not in cache.entries
    assert cache.offer("a.1", ("q",) * 320).live
    assert cache.used_bytes <= limits.cache_bytes
    assert list(cache.entries) == ["a.1"]


def test_changes_without_routes_leave_nothing() -> None:
    """Binds before the first publish cost the cache nothing, and neither does the first publish."""
    cache = RouteCache()
    change(cache, "a.*")
    warm(cache, ["a.b"])
    assert cache.used_bytes == ENTRY_BYTES + 3 + 8


def test_the_trie_counts() -> None:
    """After the first change, keys and trie nodes are charged, and freed with their routes."""
    cache = RouteCache()
    warm(cache, ["a.b.c", "a.b.d"])
    plain_bytes = cache.used_bytes
    change(cache, "x.*")
    assert cache.used_bytes == plain_bytes + 2 * KEY_BYTES + 2 * NODE_BYTES
    warm(cache, ["a.c"])
    assert cache.used_bytes == plain_bytes + ENTRY_BYTES + 3 + 8 + 3 * KEY_BYTES + 2 * NODE_BYTES
    cache.drop_all()
    assert cache.used_bytes == 0


def test_a_route_that_the_trie_leaves_no_room_for_has_its_destinations() -> None:
    """A route that fits into the cache, but not together with its key in the trie, is used once."""
    cache = RouteCache(CacheLimits(cache_bytes=ENTRY_BYTES + KEY_BYTES))
    warm(cache, ["a"])
    change(cache, "x.*")
    route = warm(cache, ["b"])["b"]
    assert not route.live
    assert route.destinations == ("q",)
    assert (len(cache.entries), cache.used_bytes) == (0, 0)


@pytest.mark.parametrize("tail", ["", ".a" * 60])
def test_bounds_hold_with_the_trie(tail: str) -> None:
    """Neither the path of a key nor building the trie exceeds the limit of bytes; evicted keys leave the trie."""
    limits = CacheLimits(entries=64, cache_bytes=60 * ENTRY_BYTES)
    cache = RouteCache(limits)
    warm(cache, [f"{number // 2}{tail}.{number}" for number in range(50)])
    for number in range(50, 300):
        if number % 10 == 0:
            change(cache, f"{number}.*.x")
            assert cache.used_bytes <= limits.cache_bytes
        warm(cache, [f"{number // 2}{tail}.{number}"])
        assert cache.used_bytes <= limits.cache_bytes
        assert len(cache.entries) <= limits.entries
    assert len(cache.entries) > 0
    change(cache, "#")
    assert not any(route.live for route in cache.entries.values())


def test_the_first_change_gives_up_a_large_cache() -> None:
    """A large cache is dropped because building its trie at once is slow; later keys enter the trie one by one."""
    cache = RouteCache()
    keys = [f"a.{number}" for number in range(INDEXED_AT_ONCE + 1)]
    routes = warm(cache, keys)
    change(cache, "x.*")
    assert (len(cache.entries), cache.used_bytes) == (0, 0)
    assert not any(route.live for route in routes.values())
    routes = {key: cache.offer(key, ("q",)) for key in keys}
    change(cache, "*.7")
    assert [key for key, route in routes.items() if not route.live] == ["a.7"]


def test_a_pattern_that_leads_too_far_gives_up_all() -> None:
    """A change visits at most its limit of nodes, however many keys exist."""
    cache = RouteCache()
    warm(cache, ["first"])
    change(cache, "x.*")
    keys = [f"{number}.z" for number in range(VISITS_MAX)]
    routes = warm(cache, keys)
    visited = cache.visited
    change(cache, "7.*")
    assert [key for key, route in routes.items() if not route.live] == ["7.z"]
    change(cache, "*.z")
    assert cache.visited - visited <= VISITS_MAX
    assert not any(route.live for route in routes.values())
    assert len(cache.entries) == 0


def test_a_storm_of_patterns_does_not_visit_the_keys_each_time() -> None:
    """The trie is searched as often as admissions pay for it; then the cache is dropped without visits."""
    cache = RouteCache()
    warm(cache, [f"a.{number}" for number in range(50)])
    for _ in range(1000):
        change(cache, "*.*.none")
        change(cache, "a.#.none.#")
    assert cache.visited <= 50 * VISITS_PER_ADMISSION + 10  # the words of the key at which the limit was noticed
    assert len(cache.entries) == 0


def test_changes_that_touch_a_part_now_and_then_do_not_end_in_the_bypass() -> None:
    """Looking up a touched key again does not count as a useless admission."""
    cache = RouteCache(CacheLimits(entries=1024, window=200))
    keys = [f"a.{number}" for number in range(100)]
    warm(cache, keys)
    for _ in range(50):
        change(cache, "a.#")
        for key in keys:
            assert cache.offer(key, ("q",)).live
    assert not cache.bypassed


def test_of_very_many_that_lead_to_a_destination_all_go() -> None:
    """Dropping the cache is cheaper than ending very many routes one by one."""
    cache = RouteCache()
    routes = warm(cache, map(str, range(VISITS_MAX + 1))) | warm(cache, ["other"], ("r",))
    cache.drop_routes_to("q")
    assert not any(route.live for route in routes.values())
    assert (len(cache.entries), cache.used_bytes) == (0, 0)


def test_one_off_keys_leave_nothing() -> None:
    """Keys that never return are remembered within a limit, and not at all in the bypass."""
    cache = RouteCache(CacheLimits(entries=512, window=2049))
    rng = random.Random(1)
    seen_most = 0
    for number in range(20_000):
        assert not cache.offer(f"{rng.random()}.{number}", ("q",)).live
        sights = len(cache._missed) + len(cache._missed_before)
        seen_most = max(seen_most, sights)
        assert not (cache.bypassed and sights)
    assert (len(cache.entries), cache.used_bytes) == (0, 0)
    assert 256 < seen_most <= 512 + 2


def test_looking_for_a_destination_is_paid_for_by_admissions() -> None:
    """Many deletions drop all routes in the end instead of searching them each time."""
    cache = RouteCache()
    routes = warm(cache, [str(number) for number in range(64)])
    calls = 0
    while routes["0"].live:
        cache.drop_routes_to("nobody")
        calls += 1
    assert calls == 64 * VISITS_PER_ADMISSION // (64 // SCANS_PER_VISIT) + 1
    assert not any(route.live for route in routes.values())


def test_routes_to_very_many_are_not_looked_through() -> None:
    """Searching routes with very many destinations is slower than resolving the few routes again."""
    cache = RouteCache()
    few = warm(cache, ["few"])["few"]
    cache.drop_routes_to("nobody")
    assert few.live
    warm(cache, ["many"], tuple(map(str, range(SCANNED_BYTES_MAX // 8))))
    cache.drop_routes_to("nobody")
    assert not few.live
    assert not cache.entries
