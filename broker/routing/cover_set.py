"""A multiset of patterns and its maximal ones, which no other pattern covers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker.routing.cover_index import CoverIndex, narrowness
from broker.routing.pattern import Pattern


@dataclass(frozen=True, slots=True)
class RootDiff:
    """The change of the roots by one operation; false if it is empty.

    Apply it as a whole or its additions first, so that no message is missed between the two.
    """

    added: tuple[Pattern, ...] = ()
    removed: tuple[Pattern, ...] = ()

    def __bool__(self) -> bool:
        """Return whether the roots have changed."""
        return bool(self.added or self.removed)


UNCHANGED = RootDiff()


class Member:
    """A pattern, how often it was added, and its place in the covering forest."""

    __slots__ = ("children", "count", "parent", "pattern")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.count = 1
        self.parent: Member | None = None
        self.children: dict[Member, None] | None = None

    def recount(self, change: int) -> None:
        """Count another addition or removal of the pattern."""
        self.count += change

    def follow(self, parent: Member | None) -> None:
        """Change the parent, None for a root."""
        self.parent = parent

    def adopt(self, child: Member) -> None:
        """Make another member a child of this one."""
        child.follow(self)
        if self.children is None:
            self.children = {child: None}
        else:
            self.children[child] = None

    def disown(self, child: Member) -> None:
        """Remove a child."""
        assert self.children is not None
        del self.children[child]
        if not self.children:
            self.children = None


class CoverSet:
    """Count patterns of one dialect, and keep the roots: the patterns not covered by others. The roots together match
    everything that all patterns match. Every other pattern is a child of a pattern that covers it, the first one found,
    so that only the direct children of a root are examined when the root is removed.

    Invariant: a pattern without a parent is a root and in the index, and no root covers another; a parent covers its
    children.
    Source: the filter poset of Siena, Carzaniga, Rosenblum and Wolf, "Design and Evaluation of a Wide-Area Event
    Notification Service", 2001; one parent for each is enough for the roots, Tarkoma and Kangasharju, "Filter Merging
    for Efficient Information Dissemination", 2005.
    """

    def __init__(self, *, covers: bool = True) -> None:
        """Without `covers` every distinct pattern is a root."""
        self._covers = covers
        self._index = CoverIndex()
        self._members: dict[str, Member] = {}
        self._roots: dict[str, Pattern] = {}

    @property
    def roots(self) -> Iterable[Pattern]:
        """The patterns that no other one covers."""
        return self._roots.values()

    @property
    def visited(self) -> int:
        """How many nodes were visited and patterns compared so far."""
        return self._index.visited

    def counts(self) -> Mapping[str, int]:
        """Return the sizes of the structures within, by name; without a pattern all of them are 0."""
        return {"patterns": len(self._members), "roots": len(self._roots), **self._index.counts()}

    def covering(self, pattern: Pattern) -> Pattern | None:
        """Return one root that covers the pattern, or None. The pattern need not be in the set."""
        return self._index.covering(pattern)

    def add(self, pattern: Pattern) -> RootDiff:
        """Count a pattern once more and return the change of roots.

        Cost: a look-up if it is known; else one search for a covering root and, if there is none, one for the roots
        that it covers.
        """
        member = self._members.get(pattern.text)
        if member is not None:
            member.recount(1)
            return UNCHANGED
        member = Member(pattern)
        self._members[pattern.text] = member
        if not self._covers:
            self._roots[pattern.text] = pattern
            return RootDiff((pattern,))
        root = self._index.covering(pattern)
        if root is not None:
            self._members[root.text].adopt(member)
            return UNCHANGED
        removed = self._index.covered(pattern)
        for covered in removed:
            self._uproot(covered)
            member.adopt(self._members[covered.text])
        self._root(pattern)
        return RootDiff((pattern,), tuple(removed))

    def remove(self, pattern: Pattern) -> RootDiff:
        """Subtract one from the count of a pattern and return the change of roots. Raises: KeyError if it is missing.
        Cost: a look-up while the count is above zero, and its children if it had a parent; if it was a root, one search
        for each of its children.
        """
        member = self._members[pattern.text]
        if member.count > 1:
            member.recount(-1)
            return UNCHANGED
        del self._members[pattern.text]
        if not self._members:
            self._members.clear()  # a dict keeps its size when keys are deleted
        parent = member.parent
        children = member.children or {}
        if parent is not None:
            parent.disown(member)
            for child in children:
                parent.adopt(child)
            return UNCHANGED
        self._uproot(member.pattern)
        return RootDiff(self._expose(children), (member.pattern,))

    def _expose(self, orphans: Iterable[Member]) -> tuple[Pattern, ...]:
        """Find another root as the parent of each orphan or make it a root, and return the new roots. Wider patterns
        come first, so that no orphan covered by another becomes a root; none ever covers an old root.
        """
        exposed: list[Pattern] = []
        for orphan in sorted(orphans, key=lambda member: narrowness(member.pattern)):
            root = self._index.covering(orphan.pattern)
            if root is not None:
                self._members[root.text].adopt(orphan)
            else:
                orphan.follow(None)
                self._root(orphan.pattern)
                exposed.append(orphan.pattern)
        return tuple(exposed)

    def _root(self, pattern: Pattern) -> None:
        self._index.add(pattern)
        self._roots[pattern.text] = pattern

    def _uproot(self, pattern: Pattern) -> None:
        if self._covers:
            self._index.remove(pattern)
        del self._roots[pattern.text]
        if not self._roots:
            self._roots.clear()  # a dict keeps its size when keys are deleted
