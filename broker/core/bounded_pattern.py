"""A regular expression that an operator wrote for a permission or a policy, with a bound on its search time.

A search with such an expression may take exponential time, so its CPU time is limited. When a search exceeds the limit,
RE2 searches in linear time, if it is installed (the extra `re2`) and supports the pattern. Otherwise the result is
undecided, and the caller errs on the safe side. The limit applies to each name, so a hostile name does not affect the
result for another.
"""

from __future__ import annotations

import re
import warnings
from time import thread_time
from typing import Any, Final

from broker.event_log import get_logger

PATTERN_MAX_CHARACTERS: Final = 1024
UNROLLED_MAX: Final = 20_000  # characters of a pattern whose counted repetitions are expanded
SEARCH_MAX_MS: Final = 2  # most searches in a name of 255 octets take some microseconds
TRIES_MAX: Final = 2  # a pause of the virtual machine counts as CPU time, but rarely happens twice in a row
LINEAR_MAX_BYTES: Final = 1 << 20  # RE2's cache for a pattern; when it is full, searches stay linear but are slower

REPETITION: Final = re.compile(r"\{\s*([0-9]*)\s*(?:,\s*[0-9]*\s*)?\}")
CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:[a-z^]+:\]|[^\]\\])*\]", re.DOTALL)
COUNT_END: Final = 1 << 32  # `regex` refuses repetition counts from this number on
# A pattern of literal characters and dots, with `.*` only at the end, needs no backtracking.
PLAIN: Final = re.compile(r"\^?(?:[\w /:@#%&,;=~!<>'\"-]|\\[^\w\s]|\.(?!\*))*(?:\.\*)?\$?", re.ASCII)
# Syntax that RE2 may interpret differently from `regex`.
AMBIGUOUS: Final = re.compile(r"\\[0-9pPv]|\{(?![0-9]+(?:,[0-9]*)?\})")

_log = get_logger()


class BoundedPattern:
    """Search names as RabbitMQ's re:run does: unanchored, with ASCII classes, and `.` does not match a line end.

    Units: `slow` counts the searches that exceeded the limit.
    """

    __slots__ = ("_compiled", "_linear", "_plain", "slow", "text")

    def __init__(self, text: str, *, written: str | None = None) -> None:
        """Compile the expression `text`; `written` is the operator's own text if it differs.

        Raises: ValueError with the reason, for a text that is too long or not a regular expression.
        """
        if len(text) > PATTERN_MAX_CHARACTERS:
            raise ValueError(f"longer than {PATTERN_MAX_CHARACTERS} characters")
        if unrolled(text) > UNROLLED_MAX:
            raise ValueError(f"repeats more than {UNROLLED_MAX} times")
        self.text = text if written is None else written
        self.slow = 0
        self._linear: Any = None  # compiled after the first search that exceeds the limit
        self._plain = PLAIN.fullmatch(text) is not None
        self._compiled: Any = re.compile(text, re.ASCII) if self._plain else bounded(text)

    def search(self, name: str) -> bool:
        """Return whether the pattern matches anywhere in the name; False if undecided. Cost: as `try_search`."""
        return self.try_search(name) is True

    def try_search(self, name: str) -> bool | None:
        """Search as `search` does, but return None if undecided; the caller must not cache that.

        Cost: usually at most TRIES_MAX times SEARCH_MAX_MS of CPU time; more while other threads run without the GIL.
        """
        if self._plain:
            return self._compiled.search(name) is not None
        if self._linear is not None and self._is_same_in_both(name):
            return self._linear.search(name) is not None
        limit_s = SEARCH_MAX_MS / 1000
        tries = 0
        while tries < TRIES_MAX:
            begun_s = thread_time()
            try:
                # Keep the GIL: the timeout counts the CPU time of all threads.
                return self._compiled.search(name, timeout=limit_s, concurrent=False) is not None
            except TimeoutError:
                if thread_time() - begun_s >= SEARCH_MAX_MS / 1000:
                    tries += 1
                else:
                    limit_s *= 2  # threads that run without the GIL used part of it
        self.slow += 1
        if self.slow == 1:  # log it once: a client that finds one slow name can find many
            self._linear = linear(self._compiled.pattern)
            decided = self._linear is not None
            _log.warning(
                "pattern.timed_out", pattern=self.text, name=name, limit_ms=SEARCH_MAX_MS, linear_from_now=decided
            )
        if self._linear is not None and self._is_same_in_both(name):
            return self._linear.search(name) is not None
        return None

    def _is_same_in_both(self, name: str) -> bool:
        """Return whether RE2 and `regex` agree on a name: they differ on line ends, spaces and Unicode case rules."""
        return name.isprintable() and (name.isascii() or "(?" not in self._compiled.pattern)


def bounded(text: str) -> Any:
    """Compile a pattern whose searches accept a timeout. Raises: ValueError."""
    import regex  # noqa: PLC0415 - takes 1.5 MB, and most brokers have plain patterns only

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about future syntax are for programmers
            return regex.compile(text, regex.ASCII, cache_pattern=False)
    except (regex.error, RecursionError, OverflowError) as error:
        reason = getattr(error, "msg", None) or "nested too deeply"
        raise ValueError(f"{reason}{_where(error)}") from None


def linear(text: str) -> Any:
    """Compile a pattern with RE2; return None if RE2 is not installed, does not support the pattern, or might interpret
    it differently.
    """
    try:
        import re2  # noqa: PLC0415 - only for patterns that exceeded the limit
    except ImportError:  # the extra is not installed
        return None
    if AMBIGUOUS.search(text):
        return None
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = LINEAR_MAX_BYTES
    try:
        return re2.compile(text, options)
    except re2.error:
        return None


def unrolled(text: str) -> int:
    """Estimate the length of a pattern with its repetitions expanded to their minimum counts.

    The result need not be exact: it only has to be large if compiling the pattern is expensive.
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
