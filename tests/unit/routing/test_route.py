"""How routes end."""

from broker.routing.route import Route


def test_ending_a_part_ends_what_was_made_of_it() -> None:
    """Both routes that share a part end with it; the part that had no share in the change stays."""
    shared, other = Route((), live=True), Route((), live=True)
    first, second = Route(("q",), live=True, parts=[shared, other]), Route(("q",), live=True, parts=[shared])
    shared.end()
    assert not any(route.live for route in (shared, first, second))
    assert other.live
    assert not other.made


def test_a_route_of_a_dead_part_is_dead() -> None:
    """It is not live from the start, and no part remembers it."""
    dead, live = Route(()), Route((), live=True)
    route = Route(("q",), live=True, parts=[live, dead])
    assert not route.live
    assert route.destinations == ("q",)
    assert not live.made
    assert not dead.made


def test_parts_forget_what_has_ended() -> None:
    """A hot route that is made again and again, because one of its parts changes, leaves nothing with the others."""
    lasting = Route((), live=True)
    for _ in range(100):
        changing = Route((), live=True)
        Route((), live=True, parts=[lasting, changing, lasting])
        assert lasting.made is not None
        assert len(lasting.made) == 1
        changing.end()
    assert not lasting.made


def test_ending_twice_is_ending_once() -> None:
    """A second end changes nothing, and neither does that of a route that never lived."""
    part = Route((), live=True)
    route = Route((), live=True, parts=[part])
    route.end()
    route.end()
    Route(()).end()
    assert part.live
    assert not part.made
