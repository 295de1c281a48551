"""Maps old routing keys to new ones: `old=new`; wildcards on the left may recur on the right."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from typing import Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.pipeline.faults import restated
from broker.pipeline.options import text_file
from broker.routing.pattern import HASH, STAR, PatternLimits, split_words

WILDCARDS: Final = (STAR, HASH)

Rule = tuple[tuple[str, ...], tuple[str, ...]]


class BadKeyMap(ValueError):
    """An invalid key map; the text is one line for the user."""


class KeyMap:
    """Maps routing keys: an exact key wins over patterns, the first pattern over later ones.

    `stock.*.eu=test.*` gives `test.acme` for `stock.acme.eu`: the n-th `*` on the right stands for the words that the
    n-th `*` on the left matched; `#` works likewise. A key without a match stays unchanged.
    Cost: one look-up for an exact key; for others the patterns, word by word.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Check the arguments. Raises: BadKeyMap."""
        self._keys: dict[str, str] = {}
        self._rules: list[Rule] = []
        limits = PatternLimits()
        for old, new in pairs:
            left, right = split_words(old), split_words(new)
            if len(new.encode()) > SHORT_STRING_MAX_BYTES:
                raise BadKeyMap(f"'{old}={new}': a routing key has at most {SHORT_STRING_MAX_BYTES} bytes")
            for wildcard in WILDCARDS:
                if right.count(wildcard) > left.count(wildcard):
                    raise BadKeyMap(f"'{old}={new}': the right side has more '{wildcard}' than the left")
            if left.count(HASH) > limits.hashes or len(left) > limits.words:
                raise BadKeyMap(f"'{old}={new}': at most {limits.hashes} '#' and {limits.words} words")
            if STAR in left or HASH in left:
                self._rules.append((tuple(left), tuple(right)))
            elif self._keys.setdefault(old, new) != new:
                raise BadKeyMap(f"'{old}' is mapped twice, to '{self._keys[old]}' and to '{new}'")

    def __len__(self) -> int:
        return len(self._keys) + len(self._rules)

    def __call__(self, key: str) -> str:
        """Return the new key. Raises: BadKeyMap if it is longer than a routing key can be."""
        known = self._keys.get(key)
        if known is not None:
            return known
        words = split_words(key)
        for left, right in self._rules:
            met = meet(left, words)
            if met is not None:
                new = fill(left, right, met)
                if len(new.encode()) > SHORT_STRING_MAX_BYTES:
                    raise BadKeyMap(
                        f"'{key}' becomes '{new}', and a routing key has at most {SHORT_STRING_MAX_BYTES} bytes"
                    )
                return new
        return key


def meet(pattern: Sequence[str], words: Sequence[str]) -> list[Sequence[str]] | None:
    """Return the words that each wildcard of a pattern matches, or None if the pattern does not match.

    A `#` matches as few words as possible. Cost: the words to the power of the `#` in the pattern.
    """
    if not pattern:
        return None if words else []
    wanted, rest = pattern[0], pattern[1:]
    if wanted == HASH:
        for taken in range(len(words) + 1):
            met = meet(rest, words[taken:])
            if met is not None:
                return [words[:taken], *met]
        return None
    if not words or wanted not in (STAR, words[0]):
        return None
    met = meet(rest, words[1:])
    return [words[:1], *met] if met is not None and wanted == STAR else met


def fill(left: Sequence[str], right: Sequence[str], met: Sequence[Sequence[str]]) -> str:
    """Return the right side, its wildcards replaced by the words that the left side's wildcards matched."""
    found: dict[str, list[Sequence[str]]] = {STAR: [], HASH: []}
    for wildcard, words in zip((word for word in left if word in WILDCARDS), met, strict=True):
        found[wildcard].append(words)
    turn = {wildcard: iter(parts) for wildcard, parts in found.items()}
    return ".".join(word for wanted in right for word in (next(turn[wanted]) if wanted in turn else (wanted,)))


def read_key_map(sources: Sequence[str]) -> KeyMap:
    """Return the map of several `old=new`, and of files: JSON objects, or CSV lines `old,new`. Raises: BadKeyMap."""
    return KeyMap([pair for source in sources for pair in pairs_of(source)])


def pairs_of(source: str) -> list[tuple[str, str]]:
    """Return the pairs of one `old=new` or of one file. Raises: BadKeyMap."""
    old, equals, new = source.partition("=")
    if equals:
        return [(old, new)]
    with restated(ValueError, BadKeyMap, "neither old=new nor a file: "):
        text = text_file(source)
    if text.lstrip().startswith("{"):
        return json_pairs(source, text)
    pairs = []
    with restated(csv.Error, BadKeyMap, f"{source}: not valid CSV: "):
        rows = list(csv.reader(text.splitlines()))
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        if len(row) != 2:
            raise BadKeyMap(f"{source}, line {number}: should be old,new")
        pairs.append((row[0].strip(), row[1].strip()))
    return pairs


def json_pairs(source: str, text: str) -> list[tuple[str, str]]:
    """Return the pairs of a JSON object. Raises: BadKeyMap."""
    with restated((ValueError, RecursionError), BadKeyMap, f"{source}: not valid JSON: "):
        found = json.loads(text)
    if not all(isinstance(new, str) for new in found.values()):
        raise BadKeyMap(f"{source}: should be one JSON object of texts")
    return list(found.items())
