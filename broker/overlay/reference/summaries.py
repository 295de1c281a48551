"""What the neighbour brokers of a constraint-vector broker vouch for, beside patterns and virtual times."""

from __future__ import annotations

from broker.overlay.packets import InterestSummary, Space

_NOTHING = InterestSummary(0, {}, 0)


class Summaries:
    """The last summary of each sender in its session, by tree node and broker."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], InterestSummary] = {}

    def receive(self, node: str, broker: str, summary: InterestSummary) -> bool:
        """Keep a summary, unless a later one came before, and return whether its serial is another one."""
        before = self.of(node, broker)
        if summary.serial >= before.serial:
            self._last[node, broker] = summary
        return summary.serial > before.serial

    def end(self, node: str, broker: str) -> None:
        """Forget the summary of a sender whose session has ended."""
        self._last.pop((node, broker), None)

    def of(self, node: str, broker: str) -> InterestSummary:
        """Return the last summary of a sender, with serial 0 if there is none."""
        return self._last.get((node, broker), _NOTHING)

    def interested(self, node: str, broker: str, space: Space) -> frozenset[str]:
        """Return the leaves that a sender named as interested in a space."""
        return frozenset(dict(self.of(node, broker).interested).get(space, ()))

    def reachable(self, node: str) -> set[str]:
        """Return the leaves to which a way leads over any broker of a tree node."""
        return {leaf for (there, _), summary in self._last.items() if there == node for leaf in summary.reachable}

    def lists(self, node: str, leaf: str) -> bool:
        """Return whether a broker of a tree node lists a leaf."""
        return any(there == node and leaf in summary.slice for (there, _), summary in self._last.items())
