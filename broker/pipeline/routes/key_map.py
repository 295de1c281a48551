"""Map routing keys to new ones by rules such as `stock.*=test.*`, in which wildcards may recur on the right."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.pipeline.faults import restated
from broker.pipeline.options import text_file
from broker.routing.pattern import HASH, STAR, PatternLimits, split_words

WILDCARDS: Final = {STAR: r"(\.[^.]*)", HASH: r"((?:\.[^.]*)*?)"}  # a `#` matches as few words as possible

Rule = tuple[re.Pattern[str], tuple[int | str, ...]]
"""A regular expression for a key with a dot before each word, and the new key as texts and group numbers."""


class BadKeyMap(ValueError):
    """An invalid key map; the text is one line for the user."""


class KeyMap:
    """A map of routing keys. Exact keys take precedence over patterns, and earlier patterns over later ones.

    `stock.*.eu=test.*` maps `stock.acme.eu` to `test.acme`: the n-th `*` on the right stands for what the n-th `*` on
    the left matched, and `#` works likewise. A key that nothing matches is unchanged.
    Cost: one look-up for an exact key. Otherwise patterns are tried in turn; each `#` of a pattern can multiply the
    time by the number of words.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Check and compile the pairs. Raises: BadKeyMap."""
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
                self._rules.append(_rule(left, right))
            elif self._keys.setdefault(old, new) != new:
                raise BadKeyMap(f"'{old}' is mapped twice, to '{self._keys[old]}' and to '{new}'")

    def __len__(self) -> int:
        return len(self._keys) + len(self._rules)

    def __call__(self, key: str) -> str:
        """Return the new key. Raises: BadKeyMap if it is longer than a routing key can be."""
        known = self._keys.get(key)
        if known is not None:
            return known
        dotted = f".{key}" if key else ""
        for left, right in self._rules:
            match = left.fullmatch(dotted)
            if match is not None:
                new = "".join(match[part] if isinstance(part, int) else part for part in right)[1:]
                if len(new.encode()) > SHORT_STRING_MAX_BYTES:
                    raise BadKeyMap(
                        f"'{key}' becomes '{new}', and a routing key has at most {SHORT_STRING_MAX_BYTES} bytes"
                    )
                return new
        return key


def _rule(left: Sequence[str], right: Sequence[str]) -> Rule:
    found = list(enumerate((word for word in left if word in WILDCARDS), 1))
    groups = {wildcard: iter([number for number, word in found if word == wildcard]) for wildcard in WILDCARDS}
    pattern = "".join(WILDCARDS.get(word) or re.escape(f".{word}") for word in left)
    return re.compile(pattern), tuple(next(groups[word]) if word in WILDCARDS else f".{word}" for word in right)


def read_key_map(sources: Sequence[str]) -> KeyMap:
    """Return the map of sources, each `old=new` or a file: a JSON object or CSV lines `old,new`. Raises: BadKeyMap."""
    return KeyMap([pair for source in sources for pair in pairs_of(source)])


def pairs_of(source: str) -> list[tuple[str, str]]:
    """Return the pairs of one source. Raises: BadKeyMap."""
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
    """Return the pairs in a JSON object. Raises: BadKeyMap."""
    with restated((ValueError, RecursionError), BadKeyMap, f"{source}: not valid JSON: "):
        found = json.loads(text)
    if not all(isinstance(new, str) for new in found.values()):
        raise BadKeyMap(f"{source}: should be one JSON object of texts")
    return list(found.items())
