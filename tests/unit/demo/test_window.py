"""The publisher's window: confirmed flights leave it, and the remaining ones are sent again."""

from demo.window import Flight, Window, window_of


def flights(count: int) -> list[Flight]:
    """Return flights with rows from 0."""
    return [Flight(row, f"flight.{row}", b"{}") for row in range(count)]


def filled(count: int) -> Window:
    """Return a window with this many unconfirmed flights."""
    window = Window()
    for flight in flights(count):
        window.sent(flight)
    return window


def test_tags_count_from_one() -> None:
    """The first publish of a channel has delivery tag 1."""
    window = Window()
    assert [window.sent(flight) for flight in flights(3)] == [1, 2, 3]


def test_single_confirm_takes_its_flight_only() -> None:
    """A confirm without multiple settles one flight; earlier ones stay."""
    window = filled(3)
    assert [flight.row for flight in window.settle(2, multiple=False)] == [1]
    assert [flight.row for flight in window.lost()] == [0, 2]


def test_multiple_confirm_takes_everything_up_to_its_tag() -> None:
    """A confirm with multiple settles its flight and all earlier ones."""
    window = filled(4)
    window.settle(2, multiple=False)
    assert [flight.row for flight in window.settle(3, multiple=True)] == [0, 2]
    assert len(window) == 1


def test_second_confirm_of_a_tag_settles_nothing() -> None:
    """A settled tag does not count again."""
    window = filled(2)
    window.settle(1, multiple=False)
    assert window.settle(1, multiple=False) == []
    assert window.settle(1, multiple=True) == []


def test_lost_flights_come_back_oldest_first_and_tags_start_again() -> None:
    """After a lost connection the oldest flights come first, and tags restart at 1."""
    window = filled(3)
    assert [flight.row for flight in window.lost()] == [0, 1, 2]
    assert len(window) == 0
    assert window.sent(flights(1)[0]) == 1


def test_small_run_has_a_small_window() -> None:
    """At most a fiftieth of the flights may be unconfirmed, within limits."""
    assert [window_of(rows, 2_000) for rows in (1, 3_000, 336_776)] == [10, 60, 2_000]
