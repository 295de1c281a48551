"""Match one pattern against one routing key, as the linear engines do for every pattern."""

from __future__ import annotations

from collections.abc import Sequence

from broker.routing.pattern import HASH, STAR


def words_match(pattern: Sequence[str], key: Sequence[str], star: str = STAR) -> bool:
    """Return whether the words of a pattern match those of a routing key.

    The words between two `#` take the leftmost place where they fit, which leaves the most for what follows; so only
    the last `#` is ever returned to.

    Cost: |key| x |pattern| at worst; without a `#` it ends at the first word that differs.
    """
    place, wanted_place = 0, 0
    retry_place, behind_hash = 0, -1
    while place < len(key):
        if wanted_place < len(pattern):
            wanted = pattern[wanted_place]
            if wanted == HASH:
                wanted_place += 1
                retry_place, behind_hash = place, wanted_place
                continue
            if wanted == star or wanted == key[place]:
                wanted_place += 1
                place += 1
                continue
        if behind_hash < 0:
            return False
        retry_place += 1
        place, wanted_place = retry_place, behind_hash
    while wanted_place < len(pattern) and pattern[wanted_place] == HASH:
        wanted_place += 1
    return wanted_place == len(pattern)
