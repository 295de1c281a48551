"""What a reader was to have and can no longer have. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.pipeline.faults import SlotGap
from broker.pipeline.source.positions import Position
from broker.slot_files.seal_log import Gap, QueueKey, Seal
from broker.slot_files.seal_view import SealView

__all__ = ["gap_text", "lost_since", "refuse_gaps"]

Takes = Callable[[str, str], bool]  # vhost and tap


def lost_since(view: SealView, begin: Position, takes: Takes) -> list[Gap]:
    """Return what is lost to a reader that begins at a position, as far as anybody can tell; best [].

    Of what is gone only the seal may be known. It counts as lost unless what is there shows that it came before.
    """
    if begin.kind in ("earliest", "latest"):
        return []
    if begin.kind == "seal":
        return [gap for gap in view.lost(begin.value - 1) if takes(gap.vhost, gap.queue)]
    lost: list[Gap] = []
    for key, released in list(view.released.items()):
        if takes(released.vhost, released.queue) and _begins_behind(_first(view, key), begin):
            known = [gap for gap in view.gaps if gap.key == key and _reaches(gap, begin)]
            made = Gap(released.seal, released.vhost, released.queue, released.number, 0, 0, 0, 0, "released")
            lost += known or [made]
    for gap in view.gaps:
        first = _first(view, gap.key)
        if takes(gap.vhost, gap.queue) and first is not None and gap.seal > first.seal and _reaches(gap, begin):
            lost.append(gap)  # in the middle of what is there: a file that was missing or damaged
    return sorted(lost, key=lambda gap: gap.seal)


def _first(view: SealView, key: QueueKey) -> Seal | None:
    there = view.of_queue(key)
    return there[0] if there else None


def _begins_behind(first: Seal | None, begin: Position) -> bool:
    """Return whether what is there does not reach back to where reading begins."""
    if first is None:
        return True
    return first.first > begin.value if begin.kind == "id" else first.first_ts_ms * 1000 > begin.value


def _reaches(gap: Gap, begin: Position) -> bool:
    return begin.kind != "id" or gap.end > begin.value


def gap_text(gaps: Sequence[Gap]) -> str:
    """Return what is lost, in a few words."""
    first = gaps[0]
    tap = f"tap {first.queue!r} in vhost {first.vhost!r}"
    if first.reason == "released":
        said = f"the slots of {tap} up to seal {first.seal} were released"
    else:
        said = f"slot {first.seal} of {tap} with {first.count:,} messages went before it was read ({first.reason})"
    return said if len(gaps) == 1 else f"{said}, and {len(gaps) - 1} more gaps"


def refuse_gaps(gaps: Sequence[Gap], where: str) -> None:
    """Raise SlotGap where something is lost. Shapes: `where` says which reader lost it."""
    if gaps:
        raise SlotGap(f"messages are gone: {gap_text(gaps)}; {where}; failOnGap=false goes on without them")
