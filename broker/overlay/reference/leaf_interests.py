"""The spaces in which each known leaf broker is interested."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from broker.overlay.packets import FullState, Space

_NONE: frozenset[Space] = frozenset()


class LeafInterests:
    """By leaf broker: the spaces of its bindings, and whether any binding is durable, both as of its virtual time."""

    __slots__ = ("_durable", "_spaces")

    def __init__(self) -> None:
        self._spaces: dict[str, frozenset[Space]] = {}
        self._durable: set[str] = set()

    def note(self, leaf: str, spaces: Collection[Space], *, durable: bool) -> frozenset[Space]:
        """Note what a leaf is interested in, and return the spaces of before and now."""
        before = self.spaces(leaf)
        self._spaces[leaf] = frozenset(spaces)
        (self._durable.add if durable else self._durable.discard)(leaf)
        return before | self._spaces[leaf]

    def learn(self, leaves: Iterable[str], full: FullState) -> set[Space]:
        """Note what a full state says of some leaves, and return the spaces of before and now."""
        touched: set[Space] = set()
        for leaf in leaves:
            spaces = [space for space, names in full.interested if leaf in names]
            touched |= self.note(leaf, spaces, durable=leaf in full.durable)
        return touched

    def drop(self, leaf: str) -> None:
        """Forget a leaf."""
        self._spaces.pop(leaf, None)
        self._durable.discard(leaf)

    def spaces(self, leaf: str) -> frozenset[Space]:
        """Return the spaces in which a leaf is interested."""
        return self._spaces.get(leaf, _NONE)

    def durable(self, leaves: Iterable[str]) -> frozenset[str]:
        """Return which of some leaves have durable bindings."""
        return frozenset(self._durable.intersection(leaves))

    def by_space(self, leaves: Iterable[str]) -> tuple[tuple[Space, tuple[str, ...]], ...]:
        """Return which of some leaves are interested in which spaces."""
        found: dict[Space, list[str]] = {}
        for leaf in sorted(leaves):
            for space in self.spaces(leaf):
                found.setdefault(space, []).append(leaf)
        return tuple((space, tuple(names)) for space, names in sorted(found.items()))
