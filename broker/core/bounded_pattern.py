"""A regular expression that somebody typed in: of a permission, a policy. It cannot take the broker's time.

Every such pattern may be exponential, so each search has a time bound: one that runs out of it matches nothing.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

import regex

from broker.event_log import get_logger

__all__ = ["PATTERN_MAX_CHARACTERS", "SEARCH_MAX_MS", "BoundedPattern"]

PATTERN_MAX_CHARACTERS: Final = 1024
SEARCH_MAX_MS: Final = 20
SLOW_MAX: Final = 8  # a pattern that ran out of time so often is not tried any more: ten thousand queues would wait

_log = get_logger()


class BoundedPattern:
    """Searches names as RabbitMQ's re:run does: unanchored, in ASCII terms, `.` stops at a line's end.

    Raises: ValueError with the reason, for a text that is too long or no regular expression.
    """

    __slots__ = ("_compiled", "_slow", "text")

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_MAX_CHARACTERS:
            raise ValueError(f"longer than {PATTERN_MAX_CHARACTERS} characters")
        self.text = text
        self._slow = 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # remarks on what the syntax may mean one day are for programmers
                self._compiled: Any = regex.compile(text, regex.ASCII, cache_pattern=False)
        except (regex.error, RecursionError, OverflowError) as error:
            reason = getattr(error, "msg", None) or "nested too deeply"
            raise ValueError(f"{reason}{_where(error)}") from None

    def search(self, name: str) -> bool:
        """Tells whether the pattern matches somewhere in the name.

        Cost: SEARCH_MAX_MS at the most, and SLOW_MAX times that over all names.
        """
        if self._slow >= SLOW_MAX:
            return False
        try:
            return self._compiled.search(name, timeout=SEARCH_MAX_MS / 1000) is not None
        except TimeoutError:
            self._slow += 1
            if self._slow == 1:  # once: whoever can make it slow can do so for every name
                _log.warning("pattern.timed_out", pattern=self.text, name=name, limit_ms=SEARCH_MAX_MS)
            return False

    def __repr__(self) -> str:
        """Returns the text behind the name of the class."""
        return f"BoundedPattern({self.text!r})"


def _where(error: BaseException) -> str:
    position = getattr(error, "pos", None)
    return "" if position is None else f" at position {position}"
