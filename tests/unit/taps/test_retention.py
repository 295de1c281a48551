"""Retention: which slot files are removed."""

from __future__ import annotations

from typing import Any

from broker.slot_files.seal_log import Cursor, Seal
from broker.slot_files.seal_view import SealView
from broker.taps.retention import Cap, plan_deletions

DAY_MS = 86_400_000
WIDE = Cap(1 << 40, 365 * DAY_MS)


def view(*facts: Seal | Cursor) -> SealView:
    """Return the view of a log with these lines."""
    return SealView([{"k": fact.kind, **fact.to_json()} for fact in facts])


def seal(number: int, tap: str = "audit", *, queue: int = 1, size_bytes: int = 100, at_ms: int = 0) -> Seal:
    """Return a seal whose last message has this time."""
    return Seal(number, "/", tap, queue, 0, 1, 1, 0, at_ms, size_bytes, 0)


def cursor(name: str, at: int, tap: str = "audit", vhost: str = "/") -> Cursor:
    """Return a cursor after a seal."""
    return Cursor(name, vhost, tap, at, 0)


def planned(found: SealView, now_ms: int = 0, default: Cap = WIDE, **caps: Cap) -> tuple[list[int], list[Any]]:
    """Return the seals to remove because all cursors passed them, and the forced ones with their reason."""
    plan = plan_deletions(found, {("/", tap): cap for tap, cap in caps.items()}, default, now_ms)
    return [one.seal for one in plan.passed], [(one.seal, reason) for one, reason in plan.forced]


def test_what_every_cursor_has_passed() -> None:
    """Files up to the last of the tap's cursors are removed; cursors of other taps and vhosts do not count."""
    seals = [seal(number) for number in (1, 2, 3)]
    assert planned(view(*seals, cursor("a", 2))) == ([1, 2], [])
    assert planned(view(*seals, cursor("a", 3), cursor("b", 1))) == ([1], [])
    assert planned(view(*seals, cursor("a", 3), cursor("b", 0))) == ([], [])
    assert planned(view(*seals, cursor("a", 3, "other"), cursor("a", 3, vhost="w"))) == ([], [])
    assert planned(view(*seals, cursor("a", 99))) == ([1, 2, 3], [])


def test_a_tap_without_cursors_keeps_all() -> None:
    """Without cursors only the caps remove files, because a cursor may be added later."""
    found = view(*(seal(number) for number in (1, 2, 3)))
    assert planned(found) == ([], [])
    assert planned(found, audit=Cap(250, DAY_MS)) == ([], [(1, "bytes")])


def test_the_bytes_of_a_tap() -> None:
    """The oldest files are removed until the rest fits; those that all cursors passed come first and are not gap."""
    found = view(*(seal(number) for number in range(1, 7)), cursor("a", 2))
    assert planned(found, audit=Cap(400, DAY_MS)) == ([1, 2], [])
    assert planned(found, audit=Cap(399, DAY_MS)) == ([1, 2], [(3, "bytes")])
    assert planned(found, audit=Cap(0, DAY_MS)) == ([1, 2], [(number, "bytes") for number in (3, 4, 5, 6)])


def test_the_age_of_a_file() -> None:
    """Files are removed from the oldest on while their last message exceeds the age."""
    found = view(seal(1, at_ms=10), seal(2, at_ms=20), seal(3, at_ms=90), seal(4, at_ms=15))
    assert planned(found, now_ms=110, audit=Cap(1000, 100)) == ([], [])
    assert planned(found, now_ms=121, audit=Cap(1000, 100)) == ([], [(1, "age"), (2, "age")])
    assert planned(found, now_ms=191, audit=Cap(1000, 100)) == ([], [(n, "age") for n in (1, 2, 3, 4)])


def test_each_tap_has_its_cap() -> None:
    """A tap's own cap overrides the default, and each tap counts only its own bytes."""
    found = view(seal(1, "a"), seal(2, "b", queue=2), seal(3, "a"), seal(4, "b", queue=2))
    assert planned(found, default=Cap(150, DAY_MS), a=Cap(200, DAY_MS)) == ([], [(2, "bytes")])
    assert planned(found, default=Cap(150, DAY_MS)) == ([], [(1, "bytes"), (2, "bytes")])


def test_a_tap_that_was_made_again() -> None:
    """The files of a removed tap and of a new one of its name count together, because they share cursors."""
    found = view(seal(1, queue=1), seal(2, queue=1), seal(3, queue=5), cursor("a", 1))
    assert planned(found, audit=Cap(100, DAY_MS)) == ([1], [(2, "bytes")])
