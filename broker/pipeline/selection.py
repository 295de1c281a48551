"""The selection of a lake's messages that a job works on, and its arguments, which several jobs share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual alias

from broker.cli.parser import BadUsage, add_list, add_value
from broker.pipeline.faults import USAGE, JobFailed, JobRefused, LakeRefused, restated
from broker.pipeline.job import add_lake, open_lake, options_of
from broker.pipeline.options import instant_ms, now_ms
from broker.pipeline.spark.log import reason
from broker.routing.pattern import HASH, STAR, parse_pattern

WORD: Final = r"\.[^.]*"
NOT_WORD: Final = re.compile(r"([^0-9A-Za-z_])")


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of a lake's messages.

    Shapes: `since` and `until` are times as `instant_ms` parses them; `queues` are names of queues and taps, or ()
    for all; `pattern` is a topic pattern for routing keys; `where` is an SQL condition on the columns of messages.
    """

    lake: Path | str
    since: str | None = None
    until: str | None = None
    queues: tuple[str, ...] = ()
    pattern: str | None = None
    where: str | None = None
    vhost: str | None = None

    def messages(self, spark: SparkSession, columns: Sequence[str] | None = None) -> DataFrame:
        """Return a frame of the selected messages. Raises: JobFailed."""
        lake = open_lake(self.lake)
        with restated(LakeRefused, JobRefused):
            frame = lake.messages(spark, since=self.since, until=self.until)
        frame = self.of(frame)
        return frame if columns is None else frame.select(*columns)

    def of(self, frame: DataFrame) -> DataFrame:
        """Return the messages of a frame that match vhost, queues, pattern and condition.

        Raises: JobFailed if the condition is not valid SQL for these columns.
        """
        if self.vhost is not None:
            frame = frame.where(F.col("vhost") == self.vhost)
        if self.queues:
            frame = frame.where(F.col("queue").isin(*self.queues))
        if self.pattern is not None:
            frame = frame.where(pattern_column(self.pattern))
        if self.where is not None:
            try:
                frame = frame.where(self.where)
            except (AnalysisException, ParseException) as error:
                raise JobFailed(f"--where {self.where!r}: {reason(str(error))}", USAGE) from None
        return frame

    def to_json(self) -> dict[str, object]:
        found = asdict(self)
        del found["lake"]
        return {**found, "queues": sorted(self.queues)}


def add_selection(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the arguments of a selection."""
    group = parser.add_argument_group("messages")
    add_lake(group, "the lake with the messages", required=required)
    moment = "such as 2026-11-20, 2026-11-20T08:30:00Z or 7d"
    group.add_argument("--from", "--since", dest="since", metavar="T", help=f"from this time on, {moment}")
    add_value(group, "--until", "T", "before this time")
    add_value(group, "--pattern", "P", "only routing keys that match this topic pattern")
    add_list(group, "--queue", "Q", "only of this queue or tap; can be repeated", dest="queues")
    add_value(group, "--vhost", "V", "only of this vhost")
    add_value(group, "--where", "SQL", "only messages for which this condition over their columns holds")


def selection_of(arguments: argparse.Namespace) -> Selection:
    """Return the selection that the arguments describe. Raises: BadUsage for an invalid time."""
    check_instants(arguments.since, arguments.until)
    return options_of(Selection, arguments)


def check_instants(*instants: str | None) -> None:
    """Check times, so that an error is reported before the slow start of Spark. Raises: BadUsage."""
    with restated(LakeRefused, BadUsage):
        for instant in instants:
            instant_ms(instant, now_ms())


def pattern_regex(pattern: str) -> str:
    """Return a topic pattern as a regular expression for keys in which a dot precedes each word."""
    pieces = []
    for word in parse_pattern(pattern).words:
        if word == STAR:
            pieces.append(WORD)
        elif word == HASH:
            pieces.append(f"(?:{WORD})*")
        else:
            pieces.append(r"\." + NOT_WORD.sub(r"\\\1", word))
    return "".join(pieces)


def pattern_column(pattern: str) -> Column:
    """Return the condition that a row's routing key matches a topic pattern."""
    words = F.when(F.col("routing_key") == "", "").otherwise(F.concat(F.lit("."), F.col("routing_key")))
    return words.rlike(rf"\A{pattern_regex(pattern)}\z")
