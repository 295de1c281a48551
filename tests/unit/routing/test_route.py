"""The end of routes."""

from broker.routing.route import Route


def test_ending_a_part_ends_what_was_made_of_it() -> None:
    """Both routes that share a part end with it; the part that did not change stays live."""
    shared, other = Route((), live=True), Route((), live=True)
    first, second = Route(("q",), live=True, parts=[shared, other]), Route(("q",), live=True, parts=[shared])
    shared.end()
    assert not any(route.live for route in (shared, first, second))
    assert other.live
    assert not other.made


def test_a_route_of_a_dead_part_is_dead() -> None:
    """A route made of a dead part is dead from the start, and no part refers to it."""
    dead, live = Route(()), Route((), live=True)
    route = Route(("q",), live=True, parts=[live, dead])
    assert not route.live
    assert route.destinations == ("q",)
    assert not live.made
    assert not dead.made


def test_parts_forget_what_has_ended() -> None:
    """A route that is made again and again, because one part changes, leaves no reference in the other parts."""
    lasting = Route((), live=True)
    for _ in range(100):
        changing = Route((), live=True)
        made = Route((), live=True, parts=[lasting, changing, lasting])
        assert lasting.made is made
        changing.end()
    assert not lasting.made


def test_ending_twice_is_ending_once() -> None:
    """Ending a route again, or one that was never live, changes nothing."""
    part = Route((), live=True)
    route = Route((), live=True, parts=[part])
    route.end()
    route.end()
    Route(()).end()
    assert part.live
    assert not part.made
