"""`slotmq pipeline query`: answers SQL over a lake, or over the slots that a broker has now."""

from __future__ import annotations

import argparse
import base64
import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.cli.parser import BadUsage, add_command
from broker.cli.table import aligned, cell
from broker.pipeline.faults import LakeRefused, SlotGap, fault_in
from broker.pipeline.job import ERROR, GAP, OK, USAGE, JobFailed, Progress, Summary, add_spark, carry_out, spark_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["QueryOptions", "add_query", "run_query", "wanted_columns"]

LIMIT: Final = 1000
MESSAGES: Final = "messages"
COUNTED: Final = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
WORD: Final = re.compile(r"\w+")
ALL_OF_THEM: Final = frozenset(
    {"table", "natural", "describe", "desc", "show"}
)  # they mean columns without naming them
SMALLEST: Final = "offset"


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """What to ask of what.

    Shapes: of `lake`, `path` and `url` one is set; the view `messages` has the messages, of a lake `bad` what could not
        be read. `limit` is how many rows are shown, 0 for all.
    """

    spark: Callable[[], SparkSession]
    sql: str
    lake: Path | None = None
    path: str | None = None
    url: str | None = None
    since: str | None = None
    until: str | None = None
    vhost: str | None = None
    taps: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    limit: int = LIMIT
    csv: bool = False


def add_query(commands: Any) -> None:
    """Adds the command."""
    command = add_command(commands, "query", "answer SQL over a lake or over live slots")
    command.add_argument("sql", metavar="SQL", help="a SELECT over the view messages; of a lake there is bad, too")
    command.add_argument("--lake", metavar="DIR", type=Path, help="the lake")
    command.add_argument("--path", metavar="DIR", help="a broker's data folder, for its live slots")
    command.add_argument("--url", metavar="URL", help="a broker's HTTP server, http(s)://user:password@host:15672")
    command.add_argument(
        "--from", "--since", dest="since", metavar="T", help="messages from then on, such as 2026-11-20"
    )
    command.add_argument("--until", metavar="T", help="messages before then")
    command.add_argument("--vhost", metavar="V", help="of live slots; default all")
    command.add_argument("--tap", metavar="T", action="append", default=[], help="of live slots; default all")
    command.add_argument("--queue", metavar="Q", action="append", default=[], help="what a queue holds now")
    command.add_argument(
        "--limit", metavar="N", type=int, default=LIMIT, help=f"rows shown, 0 for all; default {LIMIT}"
    )
    command.add_argument("--csv", action="store_true", help="the rows as CSV")
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if [arguments.lake, arguments.path, arguments.url].count(None) != 2:
        raise BadUsage("say what to ask: --lake DIR, --path DIR or --url URL, one of them")
    if arguments.limit < 0:
        raise BadUsage("--limit is not below 0")
    if arguments.csv and arguments.json:
        raise BadUsage("--csv or --json, one of them")
    if arguments.lake is not None and (arguments.tap or arguments.queue or arguments.vhost):
        raise BadUsage("--tap, --queue and --vhost are for live slots; in a lake, say it in SQL: WHERE queue = ...")
    options = QueryOptions(
        lambda: spark_of(arguments, "slotmq-query"),
        arguments.sql,
        arguments.lake,
        arguments.path,
        arguments.url,
        arguments.since,
        arguments.until,
        arguments.vhost,
        tuple(arguments.tap),
        tuple(arguments.queue),
        arguments.limit,
        arguments.csv,
    )
    return carry_out(arguments, "query", lambda progress: run_query(options, progress))


def run_query(options: QueryOptions, progress: Progress) -> Summary:
    """Asks, and returns the answer. Raises: JobFailed, with USAGE for what is no SQL over these columns."""
    from pyspark.errors import AnalysisException, ParseException

    from broker.pipeline.spark.failure import reason

    try:
        lake = None if options.lake is None else _open(options.lake)
        progress.step("starting Spark")
        spark = options.spark()
        progress.step("asking")
        if lake is None:
            _live(spark, options).createOrReplaceTempView(MESSAGES)
        else:
            lake.messages(spark, options.since, options.until).createOrReplaceTempView(MESSAGES)
            lake.bad(spark).createOrReplaceTempView("bad")
        frame = spark.sql(options.sql)
        found = (frame.limit(options.limit + 1) if options.limit else frame).collect()
    except (AnalysisException, ParseException) as error:
        raise JobFailed(reason(str(error))[0], USAGE) from None
    except Exception as error:
        fault = fault_in(error)
        if fault is None:
            raise
        raise JobFailed(str(fault), GAP if isinstance(fault, SlotGap) else ERROR) from error
    shown = found[: options.limit] if options.limit else found
    rows = [[plain(value) for value in row] for row in shown]
    if len(found) > len(shown):
        progress.say(f"the first {len(shown):,} rows; --limit 0 shows all")
    values = {
        "columns": frame.columns,
        "rows": [dict(zip(frame.columns, row, strict=True)) for row in rows],
        "more": len(found) > len(shown),
    }
    return Summary(values, OK, tuple(_lines(frame.columns, rows, as_csv=options.csv)))


def _open(folder: Path) -> Any:
    from broker.pipeline.lake import Lake

    try:
        return Lake(folder)
    except LakeRefused as refused:
        raise JobFailed(str(refused), USAGE) from None


def _live(spark: SparkSession, options: QueryOptions) -> DataFrame:
    reader = spark.read.format("slotmq").option("columns", ",".join(wanted_columns(options.sql)))
    given = {
        "path": options.path,
        "url": options.url,
        "vhost": options.vhost,
        "tap": ",".join(options.taps) or None,
        "queue": ",".join(options.queues) or None,
        "from": options.since,
        "to": options.until,
    }
    return reader.options(**{name: value for name, value in given.items() if value is not None}).load()


def wanted_columns(sql: str) -> tuple[str, ...]:
    """Returns the columns that a query can mean: those whose names are in its text, all where it has a star.

    Spark does not tell a source which columns it needs, and what is not asked for is not decoded.
    """
    from broker.pipeline.source.schema import COLUMNS

    text = COUNTED.sub("", sql)
    words = {word.lower() for word in WORD.findall(text)}
    if "*" in text or words & ALL_OF_THEM:
        return COLUMNS
    return tuple(name for name in COLUMNS if name in words) or (SMALLEST,)


def plain(value: Any) -> Any:
    """Returns a value as JSON can say it; bytes as text where they are, else in base64."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def _lines(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, as_csv: bool) -> list[str]:
    if not as_csv:
        return list(aligned(columns, [[cell(value) for value in row] for row in rows]))
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    return written.getvalue().rstrip("\n").split("\n")
