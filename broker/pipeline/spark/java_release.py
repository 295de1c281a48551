"""Parses the description of a Java, and judges whether Spark can run on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["ACCEPTED", "VECTOR_MODULE", "Release", "properties", "refusal", "release"]

VECTOR_MODULE: Final = "jdk.incubator.vector"
FIRST_GOOD: Final = {
    17: (17, 0, 11),  # required by Spark's own build
    21: (21,),
    25: (25, 0, 3),  # before it, G1 may move what zstd is compressing: JDK-8377811
}
ACCEPTED: Final = "17 (17.0.11 or newer), 21, or 25 (25.0.3 or newer)"

_LINE: Final = re.compile(r'^([A-Z_]+)="(.*)"\s*$', re.MULTILINE)
_PROPERTY: Final = re.compile(r"^ +([a-z][\w.]*) = (.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Release:
    """A version, and the modules if known."""

    version: str
    modules: frozenset[str] | None = None


def release(text: str) -> Release | None:
    """Return the release in the text of a Java home's `release` file; None if it names no version."""
    values = dict(_LINE.findall(text))
    version = values.get("JAVA_VERSION", "")
    if not _numbers(version):
        return None
    modules = values.get("MODULES")
    return Release(version, None if modules is None else frozenset(modules.split()))


def properties(text: str) -> dict[str, str]:
    """Return the properties in the text of `java -XshowSettings:properties -version`."""
    return dict(_PROPERTY.findall(text))


def refusal(version: str) -> str | None:
    """Return why Spark cannot run on a version, or None if it can."""
    numbers = _numbers(version)
    if not numbers:
        return f"version {version!r} cannot be read"
    major = numbers[0] if numbers[0] != 1 else (*numbers, 0)[1]  # 1.8 is 8
    first_good = FIRST_GOOD.get(major)
    if first_good is None:
        return f"Java {version}; Spark takes {ACCEPTED}"
    if numbers < first_good:
        return f"Java {version}; of {major}, Spark takes {'.'.join(map(str, first_good))} or newer"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
