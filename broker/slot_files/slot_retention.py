"""Slot retention: choose the slot files to remove, because every cursor has passed them or a cap is exceeded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.slot_files.seal_log import Seal
from broker.slot_files.seal_view import SealView

__all__ = ["Cap", "Deletions", "plan_deletions"]

TapKey = tuple[str, str]  # vhost and tap


class Cap(NamedTuple):
    """The limits of a tap.

    Units: bytes of all its slot files together; the age of a file is that of its last message.
    """

    max_bytes: int
    max_age_ms: int


class Deletions(NamedTuple):
    """The slot files to remove, in the order of their seals. Shapes: ``forced`` has the reason of each gap."""

    passed: list[Seal]
    forced: list[tuple[Seal, str]]


def plan_deletions(view: SealView, caps: Mapping[TapKey, Cap], default: Cap, now_ms: int) -> Deletions:
    """Return the slot files to remove now; the default cap holds for a tap without a cap of its own.

    Units: `now_ms` is on the broker's clock.
    Shapes: of each queue all up to one seal, as `SlotFolder.remove` requires.
    Invariant: a file that a cursor has not passed, or of a tap without cursors, is removed only by a cap.
    Cost: O(seals), to add up their bytes.
    """
    passed: list[Seal] = []
    forced: list[tuple[Seal, str]] = []
    places: dict[TapKey, int] = {}
    for cursor in view.cursors:
        key = cursor.vhost, cursor.tap
        places[key] = min(cursor.seal, places.get(key, cursor.seal))
    for tap, seals in _by_tap(view).items():
        cap = caps.get(tap, default)
        place = places.get(tap, 0)
        held_bytes = sum(seal.bytes for seal in seals)
        for seal in seals:
            if seal.seal <= place:
                passed.append(seal)
            elif held_bytes > cap.max_bytes:
                forced.append((seal, "bytes"))
            elif now_ms - seal.last_ts_ms - seal.ahead_ms > cap.max_age_ms:
                forced.append((seal, "age"))
            else:
                break
            held_bytes -= seal.bytes
    return Deletions(sorted(passed, key=_number), sorted(forced, key=lambda one: one[0].seal))


def _by_tap(view: SealView) -> dict[TapKey, list[Seal]]:
    """Return the seals of each tap in rising order; a tap that was removed and added again has several queues."""
    found: dict[TapKey, list[Seal]] = {}
    for seal in view.seals:
        found.setdefault((seal.vhost, seal.queue), []).append(seal)
    return found


def _number(seal: Seal) -> int:
    return seal.seal
