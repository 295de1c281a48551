"""The constituent bitmap as its article describes it, including its wrong answers, as a model for comparison."""

from __future__ import annotations

from typing import Literal

Reading = Literal["as written", "AND"]


class ArticleBitmap:
    """Follows "Important implementation details" of the WSO2 article of 2015; a row is the set of its columns.

    `reading` says how keys shorter or longer than the tables are handled: "as written" ORs the rows of null and other
    into the result, "AND" narrows it by them. With `clears_all` a removal sets the column to 0 in every row, as the
    article says; without it only in the rows of the pattern's own words, as implementations of the article did.
    """

    def __init__(self, reading: Reading = "AND", *, clears_all: bool = True) -> None:
        self.reading = reading
        self.clears_all = clears_all
        self.tables: list[dict[str, set[int]]] = []
        self.positions: dict[str, int] = {}
        self.deleted: list[int] = []

    def add(self, pattern: str) -> None:
        """Add one pattern."""
        position = self.deleted.pop() if self.deleted else len(self.positions)
        words = pattern.split(".")
        for place, word in enumerate(words):
            if place == len(self.tables):
                self.tables.append({"null": set(self.positions.values()), "other": set()})
            table = self.tables[place]
            if word == "#":
                for row in table.values():
                    row.add(position)
            elif word == "*":
                table["other"].add(position)
            else:
                table.setdefault(word, set()).add(position)
        for table in self.tables[len(words) :]:
            for name, row in table.items():
                if words[-1] == "#" or name == "null":
                    row.add(position)
        self.positions[pattern] = position

    def remove(self, pattern: str) -> None:
        """Remove one pattern and free its position."""
        position = self.positions.pop(pattern)
        for table, word in zip(self.tables, [*pattern.split("."), *(None for _ in self.tables)], strict=False):
            for name, row in table.items():
                if self.clears_all or name == word:
                    row.discard(position)
        self.deleted.append(position)

    def match(self, key: str) -> set[str]:
        """Return the patterns that the described method finds for a routing key."""
        words = key.split(".")
        result = set(self.positions.values())
        for word, table in zip(words, self.tables, strict=False):
            result &= table.get(word, set()) | table["other"]
        if len(words) != len(self.tables):
            shorter = len(words) < len(self.tables)
            table = self.tables[len(words) if shorter else -1]
            if self.reading == "as written":
                result |= table["null"] | table["other"]
            elif shorter:
                result &= table["null"]
            else:
                result &= table["null"] & table["other"]
        return {pattern for pattern, position in self.positions.items() if position in result}
