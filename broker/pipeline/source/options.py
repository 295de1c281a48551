"""The options of the sources, as `spark.read.option(...)` sets them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from broker.pipeline.faults import SourceRefused, restated
from broker.pipeline.options import GivenOptions
from broker.pipeline.source.catalog import Catalog, open_catalog
from broker.pipeline.source.planner import (
    EARLIEST,
    LATEST,
    PARTITION_MAX_BYTES,
    BadPosition,
    BatchLimits,
    Condition,
    Position,
    read_position,
)
from broker.pipeline.source.schema import COLUMNS
from broker.slot_files.seal_log import TAP_PREFIX

TRIGGER_MAX_BYTES: Final = 1 << 30
NAMES: Final = (
    "path", "url", "vhost", "queue", "tap", "topic", "from", "to", "columns", "sealNow", "failOnGap", "failOnBadRows",
    "maxSlotsPerTrigger", "maxRowsPerTrigger", "maxBytesPerTrigger", "maxPartitionBytes",
    "minPartitions",
)  # fmt: skip
WILDCARDS: Final = "*?["


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a source. Shapes: `taps` are names or globs, or None for all; `queues` are read by snapshots."""

    path: str | None
    url: str | None
    vhost: str | None
    taps: tuple[str, ...] | None
    queues: tuple[str, ...]
    topic: str | None
    begin: Position
    end: Position
    columns: tuple[str, ...]
    seal_now: bool
    fail_on_gap: bool
    fail_on_bad_rows: bool
    limits: BatchLimits
    partition_max_bytes: int
    partitions_min: int

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceOptions:
        """Return the checked options. Raises: SourceRefused."""
        given = GivenOptions(options, NAMES, SourceRefused)
        taps, queues = _taps_and_queues(given)
        return cls(
            path=given.text("path"),
            url=given.text("url"),
            vhost=given.text("vhost"),
            taps=taps,
            queues=queues,
            topic=given.text("topic"),
            begin=_position(given, "from", EARLIEST),
            end=_position(given, "to", LATEST),
            columns=_columns(given.text("columns")),
            seal_now=given.flag("sealNow") is True,
            fail_on_gap=given.flag("failOnGap") is not False,
            fail_on_bad_rows=given.flag("failOnBadRows") is not False,
            limits=BatchLimits(
                given.whole("maxSlotsPerTrigger"),
                given.whole("maxRowsPerTrigger"),
                given.whole("maxBytesPerTrigger", TRIGGER_MAX_BYTES),
            ),
            partition_max_bytes=given.whole("maxPartitionBytes") or PARTITION_MAX_BYTES,
            partitions_min=given.whole("minPartitions") or os.cpu_count() or 1,
        )

    def catalog(self) -> Catalog:
        return open_catalog(self.path, self.url)

    def selects(self, vhost: str, tap: str) -> bool:
        return is_chosen(vhost, tap, self.vhost, self.taps)

    def conditions(self) -> list[Condition]:
        topic = () if self.topic is None else (Condition("routing_key", "topic", self.topic),)
        return [*self.begin.rows(">="), *self.end.rows("<"), *topic]

    def description(self) -> str:
        """Return a description of what is read, for error texts."""
        if self.queues:
            return f"queue {', '.join(map(repr, self.queues))} in vhost {self.vhost or '/'!r}"
        taps = "all taps" if self.taps is None else f"tap {', '.join(map(repr, self.taps))}"
        return taps if self.vhost is None else f"{taps} in vhost {self.vhost!r}"


def _taps_and_queues(given: GivenOptions) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    taps = _names(given, "tap")
    queues = _names(given, "queue")
    if not queues:
        return taps or None, ()
    if taps:
        raise SourceRefused("of the options tap and queue only one can be given")
    tapped = tuple(name.removeprefix(TAP_PREFIX) for name in queues if name.startswith(TAP_PREFIX))
    if not tapped:
        return (), queues
    if len(tapped) < len(queues):
        raise SourceRefused("taps and other queues cannot be read at once: slots and a snapshot have no common order")
    return tapped, ()


def _names(given: GivenOptions, option: str) -> tuple[str, ...]:
    text = given.text(option)
    if text is None:
        return ()
    if text.startswith("["):  # JSON, for names that contain a comma
        try:
            names = json.loads(text)
        except ValueError:
            names = [text]  # not JSON but a glob, such as [ab]*
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise SourceRefused(f"option {option}: {text!r} is not a list of names")
        return tuple(names)
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise SourceRefused(f"option {option}: {text!r} has an empty name in it")
    return tuple(names)


def given_options(given: Mapping[str, str | Sequence[str] | None]) -> dict[str, str]:
    """Return the options of a source as strings. Lists become JSON; None and empty lists are left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(list(value))
        for name, value in given.items()
        if value or value == ""
    }


def is_chosen(vhost: str, tap: str, in_vhost: str | None, names: Sequence[str] | None) -> bool:
    """Return whether a tap matches one of `names`, which may be globs, in the vhost `in_vhost`. None matches all."""
    if in_vhost not in (None, vhost):
        return False
    return names is None or any(tap == name or fnmatchcase(tap, name) for name in names)


def _position(given: GivenOptions, option: str, default: Position) -> Position:
    text = given.text(option)
    if text is None:
        return default
    with restated(BadPosition, SourceRefused, f"option {option}: "):
        position = read_position(text)
    if option == "to" and position == EARLIEST:
        raise SourceRefused("option to: nothing precedes the earliest message")
    return position


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return COLUMNS
    names = tuple(name.strip() for name in text.split(","))
    check_columns(names)
    return names


def check_columns(names: Sequence[str], known: Sequence[str] = COLUMNS) -> None:
    """Raise SourceRefused for an unknown or repeated column."""
    for name in names:
        if name not in known:
            raise SourceRefused(f"there is no column {name!r}; the columns are {', '.join(known)}")
        if names.count(name) > 1:
            raise SourceRefused(f"column {name!r} is named twice")
