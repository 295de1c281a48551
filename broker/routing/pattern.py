"""Binding keys of topic exchanges as patterns in canonical form, and the dialects in which they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

STAR = "*"
HASH = "#"


class BindingKeyError(ValueError):
    """The binding key is not a pattern of its dialect, or exceeds the limits on `#` or on words."""


@dataclass(frozen=True, slots=True)
class PatternLimits:
    """Limits on one topic binding key: its `#`, counted in canonical form, and its words.

    Source: CVE-2026-67419; RabbitMQ 4.3.5 also allows two `#`, but counts them in the key as written.
    """

    hashes: int = 2
    words: int = 64


HIGHEST: Final = PatternLimits(hashes=16, words=128)
"""The highest limits that the settings of a broker can have."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A binding key in canonical form.

    Invariant: patterns of one dialect that have equal texts match the same keys.
    """

    text: str
    words: tuple[str, ...]
    literal: bool


Child = TypeVar("Child")


class WordPlace(Generic[Child]):
    """A node of a trie over the words of patterns, with its children by word, `*` and `#`."""

    __slots__ = ("hash", "star", "words")

    def __init__(self) -> None:
        self.words: dict[str, Child] | None = None
        self.star: Child | None = None
        self.hash: Child | None = None

    def child(self, word: str) -> Child | None:
        """Return the child for one word of a pattern."""
        if word == STAR:
            return self.star
        if word == HASH:
            return self.hash
        return None if self.words is None else self.words.get(word)

    def attach(self, word: str, child: Child) -> None:
        """Set the child for one word of a pattern."""
        if word == STAR:
            self.star = child
        elif word == HASH:
            self.hash = child
        elif self.words is None:
            self.words = {word: child}
        else:
            self.words[word] = child

    def detach(self, word: str) -> None:
        """Remove the child for one word of a pattern. Cost: one look-up."""
        if word == STAR:
            self.star = None
        elif word == HASH:
            self.hash = None
        elif self.words is not None:
            del self.words[word]
            if not self.words:
                self.words = None


def split_words(key: str) -> list[str]:
    """Return the words of a routing or binding key, which dots separate; the empty key has none."""
    return key.split(".") if key else []


def words_match(pattern: Sequence[str], key: Sequence[str]) -> bool:
    """Return whether the words of a pattern match those of a routing key.

    The words between two `#` are matched as far left as possible, which leaves the most words for the rest; so after a
    mismatch only the last `#` has to match more.

    Cost: |key| x |pattern| at worst.
    """
    place, wanted_place = 0, 0
    retry_place, after_hash = 0, -1
    while place < len(key):
        if wanted_place < len(pattern):
            wanted = pattern[wanted_place]
            if wanted == HASH:
                wanted_place += 1
                retry_place, after_hash = place, wanted_place
                continue
            if wanted == STAR or wanted == key[place]:
                wanted_place += 1
                place += 1
                continue
        if after_hash < 0:
            return False
        retry_place += 1
        place, wanted_place = retry_place, after_hash
    while wanted_place < len(pattern) and pattern[wanted_place] == HASH:
        wanted_place += 1
    return wanted_place == len(pattern)


def canonical_words(words: list[str]) -> list[str]:
    """Return the words with each run of wildcards that contains a `#` rewritten as its stars and one `#`.

    Such a run with k stars matches k or more words in any order of its wildcards, so the rewritten pattern matches the
    same keys and the form is unique. No wildcard directly follows a `#`.
    """
    result: list[str] = []
    pending_hash = False
    for word in words:
        if word == HASH:
            pending_hash = True
            continue
        if pending_hash and word != STAR:
            result.append(HASH)
            pending_hash = False
        result.append(word)
    if pending_hash:
        result.append(HASH)
    return result


def parse_pattern(key: str, limits: PatternLimits | None = None) -> Pattern:
    """Return the binding key as a pattern.

    Raises: BindingKeyError if the canonical form exceeds the limits.
    """
    words = split_words(key)
    if HASH in words:
        words = canonical_words(words)
        pattern = Pattern(".".join(words), tuple(words), literal=False)
    else:
        pattern = Pattern(key, tuple(words), literal=STAR not in words)
    if limits is not None:
        check_limits(key, pattern.words, limits)
    return pattern


def check_limits(key: str, words: Sequence[str], limits: PatternLimits) -> None:
    """Compare the words of a binding key with the limits. Raises: BindingKeyError if they exceed one."""
    hashes = words.count(HASH)
    if hashes > limits.hashes:
        raise BindingKeyError(f"binding key '{key}' has {hashes} '#' words, the limit is {limits.hashes}")
    if len(words) > limits.words:
        raise BindingKeyError(f"binding key '{key}' has {len(words)} words, the limit is {limits.words}")


class TopicDialect:
    """The syntax of binding and routing keys of a topic exchange. It converts keys to words in which the wildcards are
    always `*` and `#`, so that one index and its engines serve all dialects.

    This is RabbitMQ's dialect: dots separate words, `*` matches one word, and `#` matches any number of words,
    including none. An exchange selects a dialect by its `name`.
    Source: AMQP 0-9-1, 3.1.3.3; RabbitMQ.
    """

    name = "amqp"

    def words(self, key: str) -> list[str]:
        """Return the words of a routing key; the empty key has none."""
        return key.split(".") if key else []  # as split_words, without another call per message

    def parse(self, key: str, limits: PatternLimits | None = None) -> Pattern:
        """Return a binding key as a pattern. Raises: BindingKeyError for one that exceeds the limits."""
        return parse_pattern(key, limits)


class MqttDialect(TopicDialect):
    """The dialect of MQTT: slashes separate levels, `+` matches one level, and a final `#` any number, including none.

    An empty level counts, and the empty key has one. A filter that begins with a wildcard matches no topic that begins
    with `$`, so patterns and keys get a first word that says whether they begin with `$`. A level `*`, which is not a
    wildcard in MQTT, becomes the word `/*`, which cannot be a level.

    Source: MQTT 5.0, section 4.7.
    """

    name = "mqtt"

    def words(self, key: str) -> list[str]:
        """Return the words of a topic name; wildcards in it are ordinary characters."""
        words = ["$" if key.startswith("$") else ""]
        words += key.split("/")
        if STAR in words:
            words = [_escape(word) for word in words]
        return words

    def parse(self, key: str, limits: PatternLimits | None = None) -> Pattern:
        """Return a topic filter as a pattern.

        Raises: BindingKeyError for a malformed filter, or one that exceeds the limits.
        """
        levels = key.split("/")
        if not key or "\x00" in key:
            raise BindingKeyError(f"binding key '{key}' is not a topic filter: it is empty or has a null character")
        for position, level in enumerate(levels):
            if ("+" in level and level != "+") or (HASH in level and level != HASH):
                raise BindingKeyError(
                    f"binding key '{key}' is not a topic filter: a wildcard must be a level of its own"
                )
            if level == HASH and position < len(levels) - 1:
                raise BindingKeyError(f"binding key '{key}' is not a topic filter: '#' must be the last level")
        words = ["$" if key.startswith("$") else "", *(STAR if level == "+" else _escape(level) for level in levels)]
        pattern = Pattern(key, tuple(words), literal=not ("+" in levels or HASH in levels))
        if limits is not None:
            check_limits(key, levels, limits)
        return pattern


def _escape(level: str) -> str:
    return "/*" if level == STAR else level


AMQP: Final = TopicDialect()
MQTT: Final = MqttDialect()
DIALECTS: Final[dict[str, TopicDialect]] = {dialect.name: dialect for dialect in (AMQP, MQTT)}
