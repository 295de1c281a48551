"""`slotmq pipeline query`: run SQL on a lake, or on the current slots of a broker."""

from __future__ import annotations

import argparse
import base64
import csv
import io
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from broker.cli.parser import BadUsage, add_command, add_list, add_switch, add_value
from broker.cli.table import aligned, cell
from broker.pipeline.faults import OK, USAGE, JobFailed, LakeRefused, SourceRefused, faults_fail_the_job, restated
from broker.pipeline.job import (
    Progress,
    Summary,
    add_broker,
    add_lake,
    add_spark,
    carry_out,
    open_lake,
    options_of,
)
from broker.pipeline.options import instant_ms, now_ms
from broker.pipeline.selection import check_instants
from broker.pipeline.source.catalog import open_catalog
from broker.pipeline.source.options import SourceOptions, given_options
from broker.pipeline.spark.log import reason

LIMIT: Final = 1000
MESSAGES: Final = "messages"
LIMIT_MAX: Final = (1 << 31) - 2  # Spark counts in 32 bits, and the query requests one row more


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """A query and its source.

    Shapes: one of `lake`, `path` and `url` is set; the view `messages` contains the messages, and for a lake the view
    `bad` the unreadable records. `limit` is the number of rows shown, or 0 for all. `version` is a number or a time, or
    None for the newest; `columns` are the comma-separated columns to read from slots, or None for all.
    """

    spark: Callable[[], SparkSession]
    sql: str
    lake: Path | str | None = None
    path: str | None = None
    url: str | None = None
    since: str | None = None
    until: str | None = None
    vhost: str | None = None
    taps: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    limit: int = LIMIT
    csv: bool = False
    version: int | str | None = None
    columns: str | None = None
    allow_gap: bool = False


def add_query(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "query", "run SQL on a lake or on live slots")
    add_value(command, "sql", "SQL", "a SELECT over the view messages; a lake also has the view bad")
    add_lake(command, "the lake", required=False)
    add_broker(command, ", for its live slots")
    command.add_argument(
        "--from", "--since", dest="since", metavar="T", help="messages from this time on, such as 2026-11-20"
    )
    add_value(command, "--until", "T", "messages before this time")
    add_value(command, "--vhost", "V", "only this vhost, for live slots; default all")
    add_list(command, "--tap", "T", "only this tap, for live slots; default all", dest="taps")
    add_list(command, "--queue", "Q", "read what this queue holds now", dest="queues")
    add_value(command, "--limit", "N", f"number of rows shown, 0 for all; default {LIMIT}", type=int, default=LIMIT)
    add_value(command, "--as-of", "N|T", "read the lake at a version of its table messages, or at a time")
    add_value(command, "--columns", "C,C", "for live slots, the columns that the SQL needs; default all")
    add_switch(command, "--allow-gap", "for live slots, continue if some of them are missing")
    add_switch(command, "--csv", "print the rows as CSV")
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if [arguments.lake, arguments.path, arguments.url].count(None) != 2:
        raise BadUsage("name what to query with one of --lake DIR, --path DIR and --url URL")
    if not 0 <= arguments.limit <= LIMIT_MAX:
        raise BadUsage(f"--limit is between 0 and {LIMIT_MAX:,}")
    if arguments.csv and arguments.json:
        raise BadUsage("--csv and --json exclude each other")
    if arguments.lake is not None and arguments.allow_gap:
        raise BadUsage("--allow-gap is for live slots")
    if arguments.lake is not None and (arguments.taps or arguments.queues or arguments.vhost or arguments.columns):
        raise BadUsage(
            "--tap, --queue, --vhost and --columns are for live slots; in a lake, say it in SQL: WHERE queue = ..."
        )
    version = None if arguments.as_of is None else _version(arguments.as_of)
    options = options_of(QueryOptions, arguments, version=version)
    if options.lake is not None:
        check_instants(options.since, options.until)
    elif version is not None:
        raise BadUsage("--as-of is for a lake")
    else:
        with restated(SourceRefused, BadUsage):
            SourceOptions.read(live_options(options))
    return carry_out(arguments, "query", lambda progress: run_query(options, progress))


def _version(text: str) -> int | str:
    """Return a version number, or a time in the form that the Delta package accepts. Raises: BadUsage."""
    if text.isdecimal():
        return int(text)
    with restated(LakeRefused, BadUsage, "--as-of: "):
        at_ms = instant_ms(text, now_ms())
    return datetime.fromtimestamp((at_ms or 0) / 1000, UTC).isoformat()


def run_query(options: QueryOptions, progress: Progress) -> Summary:
    """Run the query, and return the rows. Raises: JobFailed, with the code USAGE for invalid SQL."""
    from broker.pipeline.formats import live_messages

    with faults_fail_the_job():
        lake = None if options.lake is None else open_lake(options.lake, options.version)
        if lake is None and not options.queues:
            with closing(open_catalog(options.path, options.url)) as catalog:
                catalog.view()  # report an unreachable broker before the slow start of Spark
        progress.step("starting Spark")
        spark = options.spark()
        progress.step("querying")
        try:
            if lake is None:
                live_messages(spark, live_options(options)).createOrReplaceTempView(MESSAGES)
            else:
                lake.messages(spark, options.since, options.until).createOrReplaceTempView(MESSAGES)
                lake.bad(spark).createOrReplaceTempView("bad")
            frame = spark.sql(options.sql)
            found = (frame.limit(options.limit + 1) if options.limit else frame).collect()
        except (AnalysisException, ParseException) as error:
            raise JobFailed(reason(str(error)), USAGE) from None
    shown = found[: options.limit] if options.limit else found
    kinds = [field.dataType for field in frame.schema.fields]
    rows = [[plain(in_utc(value, kind)) for value, kind in zip(row, kinds, strict=True)] for row in shown]
    if len(found) > len(shown):
        progress.say(f"the first {len(shown):,} rows; --limit 0 shows all")
    values = {
        "columns": frame.columns,
        "rows": [dict(zip(frame.columns, row, strict=True)) for row in rows],
        "more": len(found) > len(shown),
    }
    return Summary(values, OK, tuple(_lines(frame.columns, rows, as_csv=options.csv)))


def live_options(options: QueryOptions) -> dict[str, str]:
    """Return the source options of a query of live slots."""
    where = {"path": options.path, "url": options.url, "vhost": options.vhost, "tap": options.taps}
    what = {"queue": options.queues, "from": options.since, "to": options.until, "columns": options.columns}
    return given_options({**where, **what, "failOnGap": str(not options.allow_gap)})


def in_utc(value: Any, kind: DataType) -> Any:
    """Return a value with its timestamps in UTC, as SQL shows them; PySpark returns them in local time."""
    if value is None:
        return None
    match kind:
        case TimestampType():
            return value.astimezone(UTC).replace(tzinfo=None)
        case ArrayType():
            return [in_utc(one, kind.elementType) for one in value]
        case MapType():
            return {in_utc(key, kind.keyType): in_utc(one, kind.valueType) for key, one in value.items()}
        case StructType():
            return [in_utc(one, field.dataType) for one, field in zip(value, kind.fields, strict=True)]
    return value


def plain(value: Any) -> Any:
    """Return a value as a JSON type; bytes become text if they are UTF-8, else Base64."""
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
