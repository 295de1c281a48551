"""Messages that are too large for a neighbour: all leaves behind it are told that their numbers are lost."""

from __future__ import annotations

from dataclasses import replace

from broker.overlay.packets import Data, Element, StreamRun, VectorChange

__all__ = ["NO_LIMIT", "exceeds", "within_limit"]

NO_LIMIT = 1 << 62


def exceeds(run: StreamRun, limit_bytes: int) -> bool:
    """Return whether a run has a message above a limit. Cost: its elements."""
    for element in run.elements:  # noqa: SIM110 - each run to each neighbour passes here, and a generator costs more
        if isinstance(element, Data) and element.size_bytes > limit_bytes:
            return True
    return False


def within_limit(run: StreamRun, limit_bytes: int) -> list[StreamRun]:
    """Return a run in parts, in which the numbers of messages above a limit are lost."""
    parts: list[StreamRun] = []
    kept: list[Element] = []
    first, at, vector = run.first, run.vector_at, run.vector
    kept_at, kept_vector = at, vector  # in force behind what is kept

    def add(last: int, *, lost: bool) -> None:
        parts.append(replace(run, first=first, last=last, vector_at=at, elements=tuple(kept), lost=lost, vector=vector))

    for element in run.elements:
        if isinstance(element, VectorChange):
            kept_at, kept_vector = element.number, element.new
        elif element.size_bytes > limit_bytes:
            if first < element.number:
                add(element.number - 1, lost=False)
                at, vector = kept_at, kept_vector if run.target else None
            kept.clear()
            first = element.number
            add(element.number, lost=True)
            first, vector = element.number + 1, kept_vector if run.target else None
            continue
        kept.append(element)
    if first <= run.last:
        add(run.last, lost=False)
    return parts
