"""Parse user input: options of Spark formats (whose names ignore case), paths on this machine, and times.

A time is 2026-11-20 or 2026-11-20T08:30, in UTC or with a zone, or 7d for seven days ago.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from broker.pipeline.faults import LakeRefused, PipelineFault

Instant = datetime | str | None

SPARK_PREFIXES: Final = ("spark.", "__")
CATALOG_OPTIONS: Final = frozenset(("owner", "provider"))  # added by Spark's catalog for every table
NO_TABLE: Final = (
    "CREATE TABLE cannot be used, because Spark passes none of a table's options to a Python source; "
    "CREATE TEMPORARY VIEW v USING slotmq OPTIONS (...) can"
)
FLAGS: Final = {"true": True, "false": False}
# One slash is enough, as `str(Path("s3://bucket"))` is "s3:/bucket". A single letter is a drive, not a scheme.
URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
FIRST_MS: Final = 0  # no message has an earlier time
_AGO: Final = re.compile(r"(\d{1,9})([smhd])")


class GivenOptions:
    """The options given to a format, without Spark's own. An invalid value raises `refused`."""

    def __init__(
        self,
        options: Mapping[str, str],
        names: Sequence[str],
        refused: type[PipelineFault],
        hidden: Sequence[str] = (),
    ) -> None:
        """Check the names. Shapes: `hidden` options are accepted too, but errors do not list them.

        Raises: `refused` for an unknown name, and for the options of CREATE TABLE.
        """
        if CATALOG_OPTIONS.issubset(map(str.lower, options)):
            raise refused(NO_TABLE)
        known = {name.lower(): name for name in (*names, *hidden)}
        self._refused = refused
        self._given: dict[str, str] = {}
        for name, value in options.items():
            lower = name.lower()
            if lower in known:
                self._given[known[lower]] = value
            elif not lower.startswith(SPARK_PREFIXES):
                close = get_close_matches(lower, map(str.lower, names), 1)
                hint = f"; did you mean {known[close[0]]}?" if close else f"; the options are {', '.join(names)}"
                raise refused(f"there is no option {name!r}{hint}")

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def flag(self, name: str) -> bool | None:
        text = self._given.get(name)
        if text is not None and text.strip().lower() not in FLAGS:
            raise self._refused(f"the option {name} should be true or false, not {text!r}")
        return None if text is None else FLAGS[text.strip().lower()]

    def whole(self, name: str, default: int | None = None, least: int = 1, most: float = math.inf) -> int | None:
        number = self.number(name, math.nan, least, most, whole=True)
        return default if math.isnan(number) else int(number)

    def number(self, name: str, default: float, least: float, most: float, *, whole: bool = False) -> float:
        """Return a number from `least` to `most`, or `default` if the option was not given."""
        text = self._given.get(name)
        if text is None:
            return default
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most or (whole and not number.is_integer()):
            bounds = f"{least:g} on" if most == math.inf else f"{least:g} to {most:g}"
            kind = "whole number" if whole else "number"
            raise self._refused(f"the option {name} should be a {kind} from {bounds}, not {text!r}")
        return number


def local_path(name: str | Path, refused: type[PipelineFault] = LakeRefused) -> Path:
    """Return the path that a text or a file: URL names.

    Raises: `refused` for any other URL, which `Path` would take for a relative path.
    """
    text = str(name)
    found = URL.match(text)
    if found is None:
        return Path(text)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise refused(f"{text} is not a valid URL") from None
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    raise refused(f"{text} is a URL, and {found[1]}: is not supported: name a folder, such as one where it is mounted")


def instant_ms(instant: Instant, now_ms: int) -> int | None:
    """Return a time in milliseconds since 1970, or None for None; without a zone it is UTC. Raises: LakeRefused."""
    if instant is None:
        return None
    if isinstance(instant, str):
        ago = _AGO.fullmatch(instant)
        if ago is not None:
            return max(FIRST_MS, now_ms - int(ago[1]) * UNITS_MS[ago[2]])
        try:
            instant = datetime.fromisoformat(instant)
        except ValueError as error:
            raise LakeRefused(f"{instant!r} is not a time such as 2026-11-20, 2026-11-20T08:30:00Z or 7d") from error
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return round(instant.timestamp() * 1000)


def now_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def text_file(path: str | Path) -> str:
    """Return the text of a UTF-8 file. Raises: ValueError, with one line for the user."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not UTF-8") from None
