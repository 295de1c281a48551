"""The topic index, with literal binding keys in a dict and wildcard patterns in an engine; the interface of engines."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from gc import get_referents
from sys import getsizeof
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, Protocol, TypeVar

from broker.routing.destinations import Target
from broker.routing.engines.bitmap import ConstituentBitmap
from broker.routing.engines.dfa import LazyDfa
from broker.routing.engines.tiered import Tiered
from broker.routing.engines.trie import Trie
from broker.routing.pattern import AMQP, Pattern, PatternLimits, TopicDialect

T = TypeVar("T")
CODE: Final = (type, FunctionType, BuiltinFunctionType, ModuleType)
"""Types of objects that `footprint_bytes` leaves out."""

AUTO: Final = "auto"
"""The choice that selects `DEFAULT`."""
DEFAULT: Final = "tiered"
ENGINES: Final[dict[str, type[Any]]] = {"bitmap": ConstituentBitmap, "trie": Trie, "dfa": LazyDfa, DEFAULT: Tiered}
"""The engines by name."""
CHOICES: Final = (AUTO, "bitmap", "trie", "dfa")
"""The values that users may choose, in a setting or an exchange argument."""


class TopicEngine(Protocol[T]):
    """A map from distinct canonical patterns, including literal ones, to targets."""

    @property
    def visited(self) -> int:
        """The work of matching so far, in a unit of the engine, such as nodes or rows."""

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Store the target of a pattern and return None; if the pattern already has a target, return that."""

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of a pattern, or None if the pattern is missing."""

    def remove(self, pattern: Pattern) -> T:
        """Remove one pattern and return its target. Raises: KeyError if it is missing."""

    def match(self, key: str) -> list[T]:
        """Return the targets of all patterns that match a routing key; a target may occur more than once."""

    @property
    def size(self) -> int:
        """The number of patterns."""

    def counts(self) -> Mapping[str, int]:
        """Return the sizes of the internal structures by name; without patterns all are 0."""


def footprint_bytes(root: object, closed: tuple[type, ...] = (), without: type | tuple[type, ...] = ()) -> int:
    """Return the memory of everything reachable from an object, each object once, without classes and code.

    Shapes: objects of the types `closed` are counted but not followed, those of the types `without` are not counted.
    Cost: all reachable objects.
    """
    seen: set[int] = set()
    pending = [root]
    total_bytes = 0
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, (*CODE, without)):
            continue
        seen.add(id(item))
        total_bytes += getsizeof(item)
        if isinstance(item, closed):
            continue
        pending += get_referents(item)
        if isinstance(item, dict):
            pending += item  # a dict does not report its string keys to the garbage collector
    return total_bytes


class TopicIndex:
    """A map from binding keys to destinations, which returns the destinations of a routing key.

    A key that never had more than one binding at once, which is usual, has the destination itself as its target. Any
    other key has a `Target`.
    Cost: `add` and `remove` cost about the words of their key, however many other bindings exist.
    """

    def __init__(
        self,
        engine: TopicEngine[Any] | None = None,
        limits: PatternLimits | None = None,
        dialect: TopicDialect = AMQP,
    ) -> None:
        self.limits = limits or PatternLimits()
        self._dialect = dialect
        self._engine: TopicEngine[Any] = Tiered(dialect) if engine is None else engine
        self._literals: dict[str, Any] = {}
        self._wildcards = self._engine.size

    @property
    def size(self) -> int:
        """The number of distinct canonical keys."""
        return len(self._literals) + self._wildcards

    def counts(self) -> Mapping[str, int]:
        """Return the sizes of the engine's structures, and the numbers of literal keys and of wildcard patterns."""
        return {**self._engine.counts(), "literals": len(self._literals), "wildcards": self._wildcards}

    def footprint_bytes(self, destination: type) -> int:
        """Return the memory of the index without the destinations. Cost: the whole index."""
        return footprint_bytes(self, closed=(Target,), without=destination)

    def parse(self, key: str) -> Pattern:
        """Return the binding key as a pattern within the limits. Raises: BindingKeyError."""
        return self._dialect.parse(key, self.limits)

    def add(self, pattern: Pattern, destination: Hashable) -> bool:
        """Count one more binding and return whether the destination is new under this pattern."""
        known = self._put(pattern, destination)
        if known is None:
            return True
        if isinstance(known, Target):
            return known.add(destination)
        target = Target()
        target.add(known)
        is_new = target.add(destination)
        self._drop(pattern)
        self._put(pattern, target)
        return is_new

    def remove(self, pattern: Pattern, destination: Hashable) -> bool:
        """Remove one binding and return whether it was the destination's last under this pattern.

        Raises: KeyError if there is no such binding.
        """
        target = self._literals.get(pattern.text) if pattern.literal else self._engine.find(pattern)
        if target is None:
            raise KeyError(pattern.text)
        if isinstance(target, Target):
            if not target.remove(destination):
                return False
            if target.destinations:
                return True
        elif target != destination:
            raise KeyError(destination)
        self._drop(pattern)
        return True

    def _put(self, pattern: Pattern, target: Any) -> Any:
        """Store the target of a key and return None, or return the target that the key already has."""
        if pattern.literal:
            known = self._literals.get(pattern.text)
            if known is None:
                self._literals[pattern.text] = target
            return known
        known = self._engine.add(pattern, target)
        if known is None:
            self._wildcards += 1
        return known

    def _drop(self, pattern: Pattern) -> None:
        if pattern.literal:
            del self._literals[pattern.text]
        else:
            self._engine.remove(pattern)
            self._wildcards -= 1

    def match(self, key: str) -> tuple[Any, ...]:
        """Return the destinations of a routing key, each once. Wildcard characters in the key have no meaning."""
        targets: list[Any] = self._engine.match(key) if self._wildcards else []
        literal = self._literals.get(key)
        if literal is not None:
            targets.append(literal)
        if not targets:
            return ()
        if len(targets) == 1:
            only = targets[0]
            return only.as_tuple() if isinstance(only, Target) else (only,)
        merged: list[Any] = []
        for target in targets:
            if isinstance(target, Target):
                merged += target.destinations
            else:
                merged.append(target)
        if len(set(merged)) == len(merged):
            return tuple(merged)
        return tuple(dict.fromkeys(merged))
