"""What a topic pattern means, in the fewest lines: the reference that every index is compared with."""

from itertools import accumulate
from operator import or_


def matches(pattern: str, key: str) -> bool:
    """Return whether a binding key matches a routing key, by dynamic programming over both."""
    words = key.split(".") if key else []
    reached = [True] + [False] * len(words)  # reached[i]: the tokens so far match the first i words
    for token in pattern.split(".") if pattern else []:
        if token == "#":
            reached = list(accumulate(reached, or_))
        else:
            reached = [False] + [before and token in ("*", word) for before, word in zip(reached, words, strict=False)]
    return reached[-1]
