"""Reconciliation: what the database says that this node holds, compared with what the node knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.cluster.batch import SharedSlot
from broker.cluster.place import Returned
from broker.cluster.shared_stream import SharedStreams
from broker.event_log import get_logger

if TYPE_CHECKING:
    from bitarray import bitarray

    from broker.cluster.database_rows import LeasedRow

__all__ = ["reconciled"]

_log = get_logger()

Place = tuple[int, int]  # stream and number of a slot


def reconciled(
    streams: SharedStreams,
    rows: Sequence[LeasedRow],
    arriving: Iterable[LeasedRow],
    returning: Iterable[Returned],
) -> list[Returned]:
    """Drop what only this node knows, and return what only the database knows: it goes back to the free messages.

    What goes back is marked as delivered before, because it may have been. What this node settled, and a crash of
    the database undid, is settled again. Of what was to go back, `returning` keeps what has not gone.
    Shapes: `rows` are all that this node holds, `arriving` those whose chunks are being read, `returning` what goes
        back already.
    Invariant: no lease is under way, and no call in the database. A call whose answer is about to be taken has slots
        that this node does not know by number; those stay.
    """
    held = {(row.stream, row.number): row for row in rows if row.number is not None}
    known: dict[Place, bitarray] = {}
    for stream in list(streams.by_number.values()):
        for number, bits in stream.held().items():
            row = held.get((stream.number, number))
            gone = bits if row is None else bits & ~row.bits
            if gone.any():
                dropped = stream.drop(number, gone)
                _log.warning("lease.dropped", queue=stream.queue.name, number=number, messages=dropped)
            known[stream.number, number] = bits
    for row in arriving:
        if row.number is not None:
            _add(known, (row.stream, row.number), row.bits)
    for one in returning:
        _narrow(one, held)
        _add(known, (one.slot.stream, one.slot.number), one.bits)
    _settle_again(streams, held, known)
    for batch in (streams.batch, streams.running):
        for slot, bits in batch.settlements() if batch is not None else ():
            if slot.number:
                _add(known, (slot.stream, slot.number), bits)
    found: list[Returned] = []
    answering = streams.running.shares if streams.running is not None else {}
    for (stream_number, number), row in held.items():
        mine = known.get((stream_number, number))
        unknown = row.bits if mine is None else row.bits & ~mine
        share = answering.get(stream_number)
        if unknown.any() and (mine is not None or share is None or share.sent_mine != row.bits):
            returned = Returned(SharedSlot(stream_number, number, row.count))
            returned.bits |= unknown
            returned.seen |= unknown
            found.append(returned)
            _log.warning("lease.unknown", stream=stream_number, number=number, messages=unknown.count())
    return found


def _settle_again(streams: SharedStreams, held: Mapping[Place, LeasedRow], known: Mapping[Place, bitarray]) -> None:
    """Settle with the next call what this node has settled and the database still has."""
    for slot, bits in streams.unsaved:
        place = slot.stream, slot.number
        row, mine = held.get(place), known.get(place)
        if row is not None:
            undone = row.bits & bits if mine is None else row.bits & bits & ~mine
            if undone.any():
                settled = streams.batch.settling(slot)
                settled |= undone
                streams.batch.synchronize()
                streams.stir()


def _narrow(returned: Returned, held: Mapping[Place, LeasedRow]) -> None:
    """Leave out what has gone back: the keeper of this node may lease it before the return is sent again."""
    row = held.get((returned.slot.stream, returned.slot.number))
    if row is None:
        returned.bits.setall(0)
    else:
        returned.bits &= row.bits


def _add(known: dict[Place, bitarray], place: Place, bits: bitarray) -> None:
    whole = known.get(place)
    known[place] = bits.copy() if whole is None else whole | bits
