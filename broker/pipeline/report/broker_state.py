"""How far the readers of taps are behind, and how evenly consumers have their messages: what the broker says now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.slot_files.cursor_lag import LagTable
from broker.slot_files.seal_log import SealView

__all__ = ["consumer_rows", "tap_rows"]


def tap_rows(view: SealView, now_ms: int) -> list[dict[str, Any]]:
    """Return a row for each cursor of a tap, and one for each tap without; the furthest behind come first."""
    rows = []
    seals: dict[tuple[str, str], list[Any]] = {}
    for seal in view.seals:
        seals.setdefault((seal.vhost, seal.queue), []).append(seal)
    for cursor in view.cursors:
        seals.setdefault((cursor.vhost, cursor.tap), [])
    for (vhost, tap), held in seals.items():
        places: list[tuple[str | None, int]] = [(one.name, one.seal) for one in view.cursors_of(vhost, tap)]
        lags = LagTable(held)
        for name, at in places or [(None, 0)]:
            rows.append(
                {
                    "vhost": vhost,
                    "tap": tap,
                    "cursor": name,
                    "seal": at,
                    "slots": len(held),
                    "bytes": sum(seal.bytes for seal in held),
                    **lags.behind(at, now_ms),
                    "lost_slots": sum((gap.vhost, gap.queue) == (vhost, tap) and gap.seal > at for gap in view.gaps),
                }
            )
    return sorted(rows, key=lambda row: (-row["lag_messages"], row["vhost"], row["tap"], row["cursor"] or ""))


def consumer_rows(queues: Iterable[Mapping[str, Any]], consumers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each queue that has messages or consumers; the longest come first.

    Shapes: `skew` is how much more the busiest consumer holds than an even share would be: 1 is even, the number of
        consumers is all with one; None where nobody holds anything.
    """
    held: dict[tuple[str, str], list[int]] = {}
    for row in consumers:
        held.setdefault((row["vhost"], row["queue"]), []).append(row["messages_unacknowledged"])
    rows = []
    for row in queues:
        unacked = sorted(held.get((row["vhost"], row["name"]), []), reverse=True)
        if not unacked and not row["messages"]:
            continue
        rows.append(
            {
                "vhost": row["vhost"],
                "queue": row["name"],
                "ready": row["messages_ready"],
                "unacked": row["messages_unacknowledged"],
                "consumers": len(unacked),
                "held": unacked,
                "skew": max(unacked) * len(unacked) / sum(unacked) if any(unacked) else None,
            }
        )
    return sorted(rows, key=lambda row: (-row["ready"] - row["unacked"], row["vhost"], row["queue"]))
