"""A bucket of a bitmap trie: few patterns as the columns of constituent bitmaps."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from broker.routing.pattern import HASH, STAR

T = TypeVar("T")

BEYOND: Final = "./"  # what stands behind the end of a key; no word, for a word of either dialect lacks `.` or `/`

BITS: Final[list[int]] = [1 << column for column in range(64)]


class Part(Generic[T]):
    """A part of the trie: what is left to be looked at, where some places of the key have been tested.

    A place is an index into the words of a key: 0 is the first word, -1 the last.
    """

    __slots__ = ()

    def gather(self, words: list[str], length: int, found: list[T]) -> int:
        """Append the targets that match to what was found, and return how much was looked at.

        Shapes: `words` are those of the key, then BEYOND until every place is one, and where places are counted from
        the end the words once more.
        """
        raise NotImplementedError


class Solo(Part[T]):
    """One pattern with its target, and what it says of each place."""

    __slots__ = ("closed", "head", "least", "tail", "target", "words")

    def __init__(self, words: tuple[str, ...], target: T | None) -> None:
        self.words: Final = words
        self.target: Final[T | None] = target
        self.closed: bool = HASH not in words
        self.head: int = len(words) if self.closed else words.index(HASH)
        self.tail: int = 0
        self.least: int = self.head
        if not self.closed:
            while words[-1 - self.tail] != HASH:
                self.tail += 1
            self.least = len(words) - words.count(HASH)

    def at(self, place: int) -> str:
        """Return the literal at a place, STAR if any word will do or none is needed, BEYOND if there is none."""
        if place >= 0:
            if place < self.head:
                return self.words[place]
            return BEYOND if self.closed else STAR
        return self.words[place] if -place <= self.tail else STAR

    def places(self) -> list[int]:
        """Return the places that have a literal."""
        words = self.words
        return [place for place in (*range(self.head), *range(-self.tail, 0)) if words[place] != STAR]

    def gather(self, words: list[str], length: int, found: list[T]) -> int:
        """Append the target if its words match, what may stand between two `#` not looked at."""
        if self.least > length or (self.closed and self.least != length):
            return 1
        place = 0
        for word in self.words:
            if place == self.head:
                break
            if word != words[place] and word != STAR:
                return 1
            place += 1
        place = -self.tail
        while place < 0:
            word = self.words[place]
            if word != words[place] and word != STAR:
                return 1
            place += 1
        target = self.target
        assert target is not None
        found.append(target)
        return 1


class Row:
    """The bitmaps of one place: under each literal the columns that take it, those that take any word among them.

    `wild` are the columns that take any word; `rest` has those too that end before the place.
    """

    __slots__ = ("place", "rest", "wild", "words")

    def __init__(self, place: int, wild: int, rest: int) -> None:
        self.place: Final = place
        self.words: dict[str, int] = {}
        self.wild = wild
        self.rest = rest

    def mark(self, word: str, bit: int) -> None:
        """Set the bit of a column that asks for a word at this place."""
        words = self.words
        if word == STAR:
            self.wild |= bit
            self.rest |= bit
            for literal in words:
                words[literal] |= bit
        elif word == BEYOND:
            self.rest |= bit
        else:
            words[word] = words.get(word, self.wild) | bit

    def clear(self, word: str, bit: int) -> None:
        """Clear the bit of a column that asks for a word at this place."""
        words = self.words
        if word == STAR:
            self.wild ^= bit
            self.rest ^= bit
            for literal in words:
                words[literal] ^= bit
        elif word == BEYOND:
            self.rest ^= bit
        else:
            left = words[word] ^ bit
            if left == self.wild:
                del words[word]
            else:
                words[word] = left


class Bucket(Part[T]):
    """Patterns as columns: the bitmap of a length, and-ed with one row for each place, has the columns that match.

    Rows are there for the places where some column has a literal, those left out that were tested above. The row with
    the most literals comes first, for it leaves the fewest columns. `lengths[n]` has the columns that a key of n words
    may match, and `open` those with a `#`, which take every longer key. Columns of removed patterns are reused.

    Cost: a column that takes any word at a place sets its bit in all bitmaps of that row.
    """

    __slots__ = ("columns", "lengths", "limit", "open", "rows", "size", "targets", "tested", "used")

    def __init__(self, tested: tuple[int, ...], limit: int) -> None:
        self.tested: Final = tested
        self.limit = limit
        self.size = 0
        self.used = 0
        self.open = 0
        self.lengths: list[int] = []
        self.rows: list[Row] = []
        self.columns: list[tuple[str, ...] | None] = []
        self.targets: list[T | None] = []

    def gather(self, words: list[str], length: int, found: list[T]) -> int:
        """Append the targets of the columns that match. Cost: the rows, and what matches."""
        lengths = self.lengths
        alive = lengths[length] if length < len(lengths) else self.open
        visited = 1
        for row in self.rows:
            if not alive:
                return visited
            visited += 1
            alive &= row.words.get(words[row.place], row.rest)
        targets = self.targets
        while alive:
            column = alive.bit_length() - 1
            alive ^= BITS[column]
            target = targets[column]
            assert target is not None
            found.append(target)
        return visited

    def column(self, solo: Solo[T]) -> int:
        """Return the column of a pattern, -1 if it is not there. Cost: the rows, and the columns like it."""
        lengths = self.lengths
        alive = lengths[solo.least] if solo.least < len(lengths) else self.open
        alive = alive & ~self.open if solo.closed else alive & self.open
        for row in self.rows:
            word = solo.at(row.place)
            alive &= row.rest if word in {STAR, BEYOND} else row.words.get(word, 0)
        while alive:
            column = alive.bit_length() - 1
            alive ^= BITS[column]
            if self.columns[column] == solo.words:
                return column
        return -1

    def insert(self, solo: Solo[T]) -> None:
        """Store a pattern that is not there yet."""
        columns = self.columns
        column = (~self.used & (self.used + 1)).bit_length() - 1
        if column == len(BITS):
            BITS.append(1 << column)
        bit = BITS[column]
        if column == len(columns):
            columns.append(solo.words)
            self.targets.append(solo.target)
        else:
            columns[column] = solo.words
            self.targets[column] = solo.target
        rows = self.rows
        known = [row.place for row in rows]
        for place in solo.places():
            if place not in known and place not in self.tested:
                rows.append(Row(place, self.used & ~self._shorter(place), self.used))
        for index, row in enumerate(rows):
            row.mark(solo.at(row.place), bit)
            if index and len(row.words) > len(rows[index - 1].words):
                rows[index] = rows[index - 1]
                rows[index - 1] = row
        self._set_length(solo, bit)
        self.used |= bit
        self.size += 1

    def delete(self, column: int) -> Solo[T]:
        """Forget the pattern of a column and return it."""
        solo = self.solo(column)
        bit = BITS[column]
        for row in self.rows:
            row.clear(solo.at(row.place), bit)
        self.rows = [row for row in self.rows if row.words]
        lengths = self.lengths
        if solo.closed:
            lengths[solo.least] ^= bit
        else:
            self.open ^= bit
            for length in range(solo.least, len(lengths)):
                lengths[length] ^= bit
        while lengths and lengths[-1] == self.open:
            lengths.pop()
        self.columns[column] = None
        self.targets[column] = None
        self.used ^= bit
        self.size -= 1
        return solo

    def solo(self, column: int) -> Solo[T]:
        """Return the pattern of a column in use."""
        words = self.columns[column]
        target = self.targets[column]
        assert words is not None
        assert target is not None
        return Solo(words, target)

    def solos(self) -> list[Solo[T]]:
        """Return the patterns."""
        return [self.solo(column) for column, words in enumerate(self.columns) if words is not None]

    def _set_length(self, solo: Solo[T], bit: int) -> None:
        lengths = self.lengths
        while len(lengths) <= solo.least:
            lengths.append(self.open)
        if solo.closed:
            lengths[solo.least] |= bit
        else:
            self.open |= bit
            for length in range(solo.least, len(lengths)):
                lengths[length] |= bit

    def _shorter(self, place: int) -> int:
        """Return the columns that end before a place."""
        shorter = 0
        if place >= 0:
            for bitmap in self.lengths[: place + 1]:
                shorter |= bitmap
        return shorter & ~self.open
