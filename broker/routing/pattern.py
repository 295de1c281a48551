"""Binding keys of topic exchanges as patterns in canonical form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STAR = "*"
HASH = "#"


class BindingKeyError(ValueError):
    """The binding key is not a pattern of its dialect, or exceeds the limits on `#` or on words."""


@dataclass(frozen=True, slots=True)
class PatternLimits:
    """Bounds of one topic binding key, counted after canonical form.

    Source: CVE-2026-67419; RabbitMQ 4.3.5 allows two `#` as well, but counts them before any simplification.
    """

    hashes: int = 2
    words: int = 64


@dataclass(frozen=True, slots=True)
class Pattern:
    """A binding key in canonical form.

    Invariant: two patterns have equal text exactly if they match the same keys.
    """

    text: str
    words: tuple[str, ...]
    literal: bool


def split_words(key: str) -> list[str]:
    """Return the words of a routing or binding key; every dot separates, and the empty key has no words."""
    return key.split(".") if key else []


def canonical_words(words: list[str]) -> list[str]:
    """Return the words with each run of wildcards that holds a `#` rewritten as its stars and one `#`.

    Such a run of k stars matches any k or more words, in whatever order it was written, so the language stays the
    same and the form becomes unique. No wildcard ever follows a `#`.
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
    """Check the words of a binding key in canonical form. Raises: BindingKeyError."""
    hashes = words.count(HASH)
    if hashes > limits.hashes:
        raise BindingKeyError(f"binding key '{key}' has {hashes} '#' words, the limit is {limits.hashes}")
    if len(words) > limits.words:
        raise BindingKeyError(f"binding key '{key}' has {len(words)} words, the limit is {limits.words}")
