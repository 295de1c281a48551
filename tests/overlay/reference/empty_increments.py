"""The paper's second variant: increments without a pattern are not passed on, and V_m is read as the later one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from broker.overlay.packets import Space, Vector
from tests.overlay.reference.constraints import ConstraintInterest
from tests.overlay.reference.packets import Increment

READINGS_MAX: Final = 8
"""How many vectors a broker remembers for each neighbour node and space."""


class EmptyIncrementsEnd(ConstraintInterest):
    """Constraint vectors where an increment ends at a broker for which it changes nothing.

    There all patterns are covered that it adds, so what the neighbours know is complete up to its virtual time, too.
    The broker remembers the vector that the neighbours know and the one up to which it is complete: a V_m that equals
    the first may be read as the second.

    This is sound between publishing and subscribing leaves with one tree node between them. It is not where there are
    more: a broker nearer to the publisher may have learned from a sibling of this one that the cover is withdrawn,
    before the sibling knew of what it covers. Such a broker knows all of V_m and leaves the message out, and here the
    silence would be read as one for which nothing was wanted. The paper has the leaf check that V_m never falls, which
    does not help: the message has the same V_m as those before it. So no setting offers it.

    Source: the Gryphon paper, section 3.7.
    """

    def _begin(self) -> None:
        # by neighbour node: leaves with the virtual time and the spaces that the node knows of them
        self._kept: dict[str, dict[str, tuple[int, frozenset[Space]]]] = {node: {} for node in self._neighbours}
        self._readings: dict[tuple[str, Space], list[tuple[Vector, Vector]]] = {}
        super()._begin()

    def reading(self, node: str, space: Space, vector: Vector) -> Vector:
        """Return as what the V_m of a message may be read that came from a tree node, straight from its publisher."""
        here = {leaf: time for leaf, time in vector.items() if self._nodes.get(leaf) != node}
        for known, complete in reversed(self.readings(node, space)):
            if known == here:
                return {**vector, **complete}
        return vector

    def readings(self, node: str, space: Space) -> Sequence[tuple[Vector, Vector]]:
        """Return the vectors that a tree node knew, each with the one that it stands for."""
        return self._readings.get((node, space), ())

    def _send_increment(self, node: str, increment: Increment) -> None:
        """Send an increment, unless it is empty: then remember what the vector that the tree node knows stands for."""
        kept = self._kept[node]
        leaf = increment.leaf
        if increment.whole and not (increment.added or increment.removed):
            kept.setdefault(leaf, (self.time(leaf), self._interests.spaces(leaf)))
            for space in increment.spaces:
                self._remember(node, space, increment)
            return
        if leaf in kept:
            increment = replace(increment, whole=True, constraint=self._slice(node))
            del kept[leaf]
        super()._send_increment(node, increment)

    def _remember(self, node: str, space: Space, increment: Increment) -> None:
        kept, spaces = self._kept[node], self._interests.spaces
        times = super()._slice(node)
        told = {leaf: kept.get(leaf, (time, spaces(leaf))) for leaf, time in times.items()}
        known = {leaf: time for leaf, (time, wanted) in told.items() if space in wanted}
        complete = {leaf: time for leaf, time in times.items() if space in spaces(leaf)}
        readings = self._readings.setdefault((node, space), [])
        readings.append((known, complete | {increment.leaf: increment.time}))
        del readings[:-READINGS_MAX]

    def _send_full(self, node: str, broker: str, refresh: tuple[str, tuple[int, int]] | None = None) -> None:
        """Send the full state with all virtual times: a receiver that asks for it may need them."""
        self._kept[node].clear()
        super()._send_full(node, broker, refresh)

    def _slice(self, node: str) -> dict[str, int]:
        """Return V_b of the leaves in all directions but one, as the tree node knows it."""
        return super()._slice(node) | {leaf: time for leaf, (time, _) in self._kept[node].items()}
