"""A regular expression that somebody typed in: of a permission, a policy. It cannot take the broker's time.

Every such pattern may be exponential, so each search has a time bound: one that runs out of it matches nothing.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, Final

import regex

from broker.event_log import get_logger

__all__ = ["PATTERN_MAX_CHARACTERS", "SEARCH_MAX_MS", "BoundedPattern"]

PATTERN_MAX_CHARACTERS: Final = 1024
UNROLLED_MAX: Final = 20_000  # a repetition of a fixed count is written out when compiled, the inner within the outer
SEARCH_MAX_MS: Final = 20
SLOW_MAX: Final = 8  # a pattern that ran out of time so often is not tried any more: ten thousand queues would wait

REPETITION: Final = re.compile(r"\{\s*([0-9]*)\s*(?:,\s*[0-9]*\s*)?\}")
CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:[a-z^]+:\]|[^\]\\])*\]", re.DOTALL)
COUNT_END: Final = 1 << 32  # the compiler refuses it

_log = get_logger()


class BoundedPattern:
    """Searches names as RabbitMQ's re:run does: unanchored, in ASCII terms, `.` stops at a line's end.

    Raises: ValueError with the reason, for a text that is too long or no regular expression.
    """

    __slots__ = ("_compiled", "_slow", "text")

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_MAX_CHARACTERS:
            raise ValueError(f"longer than {PATTERN_MAX_CHARACTERS} characters")
        if unrolled(text) > UNROLLED_MAX:
            raise ValueError(f"repeats more than {UNROLLED_MAX} times")
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


def unrolled(text: str) -> int:
    """Returns how long a pattern is with its repetitions written out, by their least counts.

    A guess that need not parse what the compiler parses better: it only has to be large for what is large.
    """
    groups: list[int] = [0]
    last = at = 0
    while at < len(text):
        letter, end = text[at], at + 1
        if letter == "(":
            groups.append(0)
            last = 0
        elif letter == ")" and len(groups) > 1:
            last = max(groups.pop(), 1)
            groups[-1] += last
        elif letter == "{" and (found := REPETITION.match(text, at)):
            end = found.end()
            times = max(int(found[1] or 0), 1)
            times = times if times < COUNT_END else 1
            groups[-1] += last * (times - 1)
            last *= times
        else:
            if letter == "\\":
                end = at + 2
            elif letter == "[" and (found := CLASS.match(text, at)):
                end = found.end()
            last = 1
            groups[-1] += 1
        at = end
    return sum(groups)


def _where(error: BaseException) -> str:
    position = getattr(error, "pos", None)
    return "" if position is None else f" at position {position}"
