"""The plain inverted bitmap: a row for each routing key seen, a bit for each pattern."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final, Generic, TypeVar

from bitarray import bitarray

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.conventional import words_match
from broker.routing.pattern import Pattern

T = TypeVar("T")

ROWS_MOST: Final = 16_384
ROWS_MOST_BYTES: Final = 16 * 1024 * 1024
ROW_BYTES: Final = 250
"""What a row costs besides its key and its bits: the places in two dicts, the words, the objects."""


class PlainBitmap(Generic[T]):
    """Maps patterns to targets, and remembers the matching patterns of each key that it has seen.

    Indexing tests a new key against all patterns and a new pattern against all keys that have rows. Matching takes the
    row of the key. Rows are the algorithm and not a cache in addition, but publishers make them, so they are bounded in
    number and bytes: when full, the oldest eighth is dropped. The bit of a removed pattern is 0 in every row, and the
    next pattern takes its position; when more than half of the positions are deleted, all are renumbered, without rows.

    Cost: a match of a key that has a row a bit a pattern; of another one every pattern is tested, and each test costs
        the words of one times those of the other. An add tests every row, a remove clears a bit in each.
    Invariant: `visited` counts tests of one key against one pattern, and rows looked up.
    Source: Theivendiram and Uthayakumar, Fast Topic Matching Algorithm Implementation for WSO2 Message Broker, 2015,
        "Introduction to the inverted bitmap algorithm".
    """

    def __init__(
        self, dialect: TopicDialect = AMQP, *, rows_most: int = ROWS_MOST, rows_most_bytes: int = ROWS_MOST_BYTES
    ) -> None:
        self.visited = 0
        self.used_bytes = 0
        self._dialect = dialect
        self._rows_most = rows_most
        self._rows_most_bytes = rows_most_bytes
        self._rows: dict[str, bitarray] = {}
        self._keys: dict[str, list[str]] = {}
        self._positions: dict[str, int] = {}
        self._patterns: list[tuple[str, ...] | None] = []
        self._targets: list[T | None] = []
        self._deleted: list[int] = []

    def __len__(self) -> int:
        return len(self._positions)

    def counts(self) -> Mapping[str, int]:
        """Return the number of rows and columns, columns at deleted positions among them."""
        return {"rows": len(self._rows), "columns": len(self._patterns)}

    def table(self) -> Mapping[str, str]:
        """Return every row, a digit for each position, by its key."""
        return {key: row.to01() for key, row in self._rows.items()}

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Store the target of one pattern, or return the one that it has already. Cost: a test for every row."""
        known = self.find(pattern)
        if known is not None:
            return known
        words = pattern.words
        if self._deleted:
            position = self._deleted.pop()
            self._patterns[position] = words
            self._targets[position] = target
            for key, row in self._rows.items():
                row[position] = words_match(words, self._keys[key])
        else:
            position = len(self._patterns)
            self._patterns.append(words)
            self._targets.append(target)
            for key, row in self._rows.items():
                row.append(words_match(words, self._keys[key]))
            if position % 8 == 0:
                self.used_bytes += len(self._rows)
                self._make_room(0)
        self._positions[pattern.text] = position
        self.visited += len(self._rows)
        return None

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there."""
        position = self._positions.get(pattern.text)
        return None if position is None else self._targets[position]

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Cost: a bit in every row. Raises: KeyError if it is not there."""
        position = self._positions.pop(pattern.text)
        target = self._targets[position]
        assert target is not None
        self._patterns[position] = None
        self._targets[position] = None
        self._deleted.append(position)
        if len(self._deleted) * 2 > len(self._patterns):
            self._number_anew()
        else:
            for row in self._rows.values():
                row[position] = 0
        return target

    def match(self, key: str) -> list[T]:
        """Return the targets of the patterns that match, each once."""
        if not self._positions:
            return []
        row = self._rows.get(key)
        if row is None:
            row = self._index(key)
        else:
            self.visited += 1
        found: list[T] = []
        for position in row.search(1):
            target = self._targets[position]
            if target is not None:
                found.append(target)
        return found

    def _index(self, key: str) -> bitarray:
        """Return the row of a key that has none, and keep it if it is within the bounds."""
        words = self._dialect.words(key)
        row = bitarray([pattern is not None and words_match(pattern, words) for pattern in self._patterns])
        self.visited += len(self._patterns)
        weight_bytes = self._weight_bytes(key)
        if weight_bytes <= self._rows_most_bytes and self._rows_most > 0:
            self._make_room(weight_bytes)
            self._rows[key] = row
            self._keys[key] = words
            self.used_bytes += weight_bytes
        return row

    def _make_room(self, weight_bytes: int) -> None:
        """Forget the oldest rows until as many bytes are free, and one more row if one is wanted."""
        while self._rows and (
            self.used_bytes + weight_bytes > self._rows_most_bytes
            or len(self._rows) + (weight_bytes > 0) > self._rows_most
        ):
            for key in list(islice(self._rows, len(self._rows) // 8 + 1)):
                del self._rows[key]
                del self._keys[key]
                self.used_bytes -= self._weight_bytes(key)

    def _weight_bytes(self, key: str) -> int:
        return ROW_BYTES + 3 * len(key) + (len(self._patterns) + 7) // 8

    def _number_anew(self) -> None:
        """Give the patterns the first positions, in their order, and forget the rows."""
        self._rows = {}
        self._keys = {}
        self.used_bytes = 0
        self._deleted = []
        kept = [position for position, words in enumerate(self._patterns) if words is not None]
        self._patterns = [self._patterns[position] for position in kept]
        self._targets = [self._targets[position] for position in kept]
        moved = dict(zip(kept, range(len(kept)), strict=True))
        self._positions = {text: moved[position] for text, position in self._positions.items()}
