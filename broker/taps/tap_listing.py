"""List taps and their cursors as rows of JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from broker.core.vhost import Vhost
from broker.slot_files.seal_log import TAP_PREFIX, Gap, Released, Seal
from broker.slot_files.seal_view import LagTable

if TYPE_CHECKING:
    from broker.slot_files.seal_view import SealView

Row = dict[str, Any]


def end_of(view: SealView, vhost: str, tap: str) -> int:
    """Return the id after the last message in the slot files of a tap, even removed ones, or 0 if there were none."""
    known: list[Seal | Gap | Released] = [*view.seals, *view.gaps, *view.released.values()]
    return max((one.end for one in known if (one.vhost, one.queue) == (vhost, tap)), default=0)


def tap_rows(vhost: Vhost, view: SealView, now_ms: int) -> Iterator[Row]:
    """Yield the taps of a vhost, and removed taps that still have slot files.

    Shapes: `waiting` is the number of messages that are not in a slot file yet, `messages` that of the messages in slot
        files, and `slots` the number of slot files. Cursors have the fields of `Lag`.
    Units: `now_ms` is the wall-clock time.
    Cost: O(slot files), plus O(cursors of the broker) for each tap.
    """
    seals: dict[str, list[Seal]] = {queue.tap: [] for queue in vhost.queues.taps.values()}
    for key in view.queues:  # a tap that was removed and added again has several queues; older ones have lower numbers
        found = view.of_queue(key) if key[0] == vhost.name else []
        if found:
            seals.setdefault(found[0].queue, []).extend(found)
    for name in sorted(seals):
        yield _row(vhost, view, name, seals[name], now_ms)


def cursor_rows(taps: Iterable[Row]) -> list[Row]:
    """Return the cursors of the listed taps, each with its lag."""
    return [{"vhost": tap["vhost"], "tap": tap["name"], **cursor} for tap in taps for cursor in tap["cursors"]]


def _row(vhost: Vhost, view: SealView, name: str, seals: Sequence[Seal], now_ms: int) -> Row:
    queue = vhost.queues.taps.get(TAP_PREFIX + name)
    exchange = None if queue is None else vhost.exchanges.get(queue.exchange)
    lags = LagTable(seals)
    kept = lags.behind(0, now_ms)
    return {
        "vhost": vhost.name,
        "name": name,
        "exchange": None if queue is None else queue.exchange,
        "pattern": None if queue is None else queue.pattern,
        "removed": queue is None,
        "listens": exchange is not None and queue in exchange.listeners.patterns,
        "max_bytes": None if queue is None else queue.max_bytes,
        "max_age_ms": None if queue is None else queue.max_age_ms,
        "waiting": 0 if queue is None else queue.ready,
        "slots": len(seals),
        "messages": kept["lag_messages"],
        "bytes": kept["lag_bytes"],
        "first_seal": seals[0].seal if seals else None,
        "last_seal": seals[-1].seal if seals else None,
        "cursors": [
            {
                "name": cursor.name,
                "user": cursor.user,
                "seal": cursor.seal,
                "incarnation": view.starts.of(cursor.seal),
                "at_ms": cursor.at_ms,
                **lags.behind(cursor.seal, now_ms),
            }
            for cursor in view.cursors_of(vhost.name, name)
        ],
    }
