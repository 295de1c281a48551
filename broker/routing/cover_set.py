"""A multiset of patterns, and its roots: the patterns that no other pattern covers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker.routing.cover_index import CoverIndex, narrowness
from broker.routing.pattern import Pattern


@dataclass(frozen=True, slots=True)
class RootDiff:
    """The change of the roots by one operation; false if it is empty.

    Apply it as a whole, or the additions first, so that no message is missed in between.
    """

    added: tuple[Pattern, ...] = ()
    removed: tuple[Pattern, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


UNCHANGED = RootDiff()


class Member:
    """A pattern, the number of times that it was added, and its parent and children in the covering forest."""

    __slots__ = ("children", "count", "parent", "pattern")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.count = 1
        self.parent: Member | None = None
        self.children: dict[Member, None] | None = None

    def recount(self, change: int) -> None:
        self.count += change

    def set_parent(self, parent: Member | None) -> None:
        """Set the parent, or None for a root."""
        self.parent = parent

    def add_child(self, child: Member) -> None:
        child.set_parent(self)
        if self.children is None:
            self.children = {child: None}
        else:
            self.children[child] = None

    def remove_child(self, child: Member) -> None:
        assert self.children is not None
        del self.children[child]
        if not self.children:
            self.children = None


class CoverSet:
    """A multiset of patterns of one dialect, with its roots: the patterns that no other one covers.

    The roots together match every key that any pattern matches. Every other pattern is the child of one pattern that
    covers it, so that only the children of a root are examined when the root is removed.

    Invariant: the patterns without a parent are the roots, and a parent covers its children.
    Source: the filter poset of Siena, Carzaniga, Rosenblum and Wolf, "Design and Evaluation of a Wide-Area Event
    Notification Service", 2001; one parent per pattern suffices: Tarkoma and Kangasharju, "Filter Merging for Efficient
    Information Dissemination", 2005.
    """

    def __init__(self, *, covers: bool = True) -> None:
        """Without `covers` every distinct pattern is a root."""
        self._covers = covers
        self._index = CoverIndex()
        self._members: dict[str, Member] = {}
        self._roots: dict[str, Pattern] = {}

    @property
    def roots(self) -> Iterable[Pattern]:
        return self._roots.values()

    @property
    def visited(self) -> int:
        """The number of nodes visited and patterns compared so far."""
        return self._index.visited

    def counts(self) -> Mapping[str, int]:
        """Return the sizes of the internal structures by name; without patterns all are 0."""
        return {"patterns": len(self._members), "roots": len(self._roots), **self._index.counts()}

    def covering(self, pattern: Pattern) -> Pattern | None:
        """Return one root that covers the pattern, or None. The pattern need not be in the set."""
        return self._index.covering(pattern)

    def add(self, pattern: Pattern) -> RootDiff:
        """Add a pattern once and return the change of the roots.

        Cost: a look-up if the set has the pattern; else one search for a covering root and, if there is none, one for
        the roots that the pattern covers.
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
            self._members[root.text].add_child(member)
            return UNCHANGED
        removed = self._index.covered(pattern)
        for covered in removed:
            self._remove_root(covered)
            member.add_child(self._members[covered.text])
        self._add_root(pattern)
        return RootDiff((pattern,), tuple(removed))

    def remove(self, pattern: Pattern) -> RootDiff:
        """Remove a pattern once and return the change of the roots. Raises: KeyError if it is missing.
        Cost: a look-up while the count stays above zero; else its children, with one search for each if it was a root.
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
            parent.remove_child(member)
            for child in children:
                parent.add_child(child)
            return UNCHANGED
        self._remove_root(member.pattern)
        return RootDiff(self._expose(children), (member.pattern,))

    def _expose(self, orphans: Iterable[Member]) -> tuple[Pattern, ...]:
        """Make each orphan the child of another root, or a root, and return the new roots. Wider patterns are examined
        first, so that no orphan covered by another becomes a root; no orphan covers an old root.
        """
        exposed: list[Pattern] = []
        for orphan in sorted(orphans, key=lambda member: narrowness(member.pattern)):
            root = self._index.covering(orphan.pattern)
            if root is not None:
                self._members[root.text].add_child(orphan)
            else:
                orphan.set_parent(None)
                self._add_root(orphan.pattern)
                exposed.append(orphan.pattern)
        return tuple(exposed)

    def _add_root(self, pattern: Pattern) -> None:
        self._index.add(pattern)
        self._roots[pattern.text] = pattern

    def _remove_root(self, pattern: Pattern) -> None:
        if self._covers:
            self._index.remove(pattern)
        del self._roots[pattern.text]
        if not self._roots:
            self._roots.clear()  # a dict keeps its size when keys are deleted
