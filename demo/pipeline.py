"""The run with a pipeline: a tap, a lake, queries and a replay; every result is checked against the data frame.

The commands of all jobs run in this process, so that they share one JVM.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
from contextlib import redirect_stdout
from typing import Any

import pandas as pd
from deltalake import DeltaTable

from broker.cli.main import main as slotmq
from demo.clients import channel_to
from demo.flights import LATE_MINUTES, read_flights
from demo.ledger import Failed
from demo.plan import EXCHANGE
from demo.run import Run

REPLAYED = "replayed"
MONTH, DAY = 1, 2  # exists even in a run of a few thousand rows
LATE = """SELECT split(routing_key, '[.]')[1] AS carrier, split(routing_key, '[.]')[2] AS origin, count(*) AS late
FROM messages WHERE routing_key LIKE 'flight.%.late' GROUP BY carrier, origin ORDER BY carrier, origin"""
ONE_DAY = f"get_json_object(string(body), '$.month') = {MONTH} AND get_json_object(string(body), '$.day') = {DAY}"


class PipelineRun(Run):
    """The flights through one broker with a tap, into a lake; nothing is killed, so no flight arrives twice."""

    def _await_bindings(self) -> None:
        self._data, self._lake = str(self._brokers["broker"].data), str(self._folder / "lake")
        self._do("tap", "add", EXCHANGE, "#", "--name", EXCHANGE, "--cursor", "archive", "--data-dir", self._data)

    def _further(self) -> None:
        self._display.stop()
        for step in (self._archive, self._report, self._query, self._route, self._replay):
            step()
        print("OK: the lake, the queries, the routes and the replay agree with the flights")

    def _archive(self) -> None:
        summary = self._job("archive", "--path", self._data, "--tap", EXCHANGE)
        self._expect("rows archived", summary["rows"], len(self._keys))
        rows = self._rows("SELECT message_id, string(body) AS body, routing_key, offset FROM messages")
        found = pd.read_json(io.StringIO("\n".join(row["body"] for row in rows)), lines=True, convert_dates=False)
        found.index = pd.Index([int(row["message_id"]) for row in rows])
        wanted = self._frame
        found = found.reindex(index=wanted.index, columns=wanted.columns)  # a missing row differs in every column
        equal = ((found == wanted) | (found.isna() & wanted.isna())).all()
        self._expect("columns of the lake that differ from the data frame", list(equal.index[~equal]), [])
        self._tell(f"the lake equals the data frame: {len(rows):,} rows, {len(wanted.columns)} columns")
        table = DeltaTable(f"{self._lake}/messages")  # read as any other program does
        self._expect("rows that another Delta reader finds", table.count(), len(self._keys))
        before = len(table.file_uris())
        done = json.loads(self._do("pipeline", "compact", "--lake", self._lake, "--json"))
        table.update_incremental()
        self._expect("rows that it finds when the lake is compacted", table.count(), len(self._keys))
        self._tell(f"a plain Delta reader sees each row once; compact made {before} files {done['files_after']}")

    def _report(self) -> None:
        path = self._options.report or self._folder / "report.html"
        self._job("report", "--path", self._data, "-o", str(path))
        self._tell(f"the report has {path.stat().st_size:,} bytes: {path}")

    def _query(self) -> None:
        answer = {(row["carrier"], row["origin"]): int(row["late"]) for row in self._rows(LATE)}
        late = self._frame[self._frame["dep_time"].notna() & (self._frame["arr_delay"] > LATE_MINUTES)]
        expected = {group: int(number) for group, number in late.groupby(["carrier", "origin"]).size().items()}
        self._expect("late flights per carrier and origin", answer, expected)
        self._tell(f"{sum(answer.values()):,} late flights in {len(answer)} groups, as the data frame says")

    def _route(self) -> None:
        plan = self._plan
        bindings = self._folder / "bindings.csv"
        with bindings.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("exchange", "pattern", "queue"))
            writer.writerows((EXCHANGE, key, queue.name) for queue in plan for key in queue.binding_keys)
        summary = self._job("route", "--bindings", str(bindings))
        counts = zip(plan, self._expected, strict=True)
        got = {row["queue"]: row["messages"] for row in summary["queues"] if row["messages"]}
        self._expect("messages per queue", got, {queue.name: number for queue, number in counts if number})
        self._tell(f"{len(plan)} queues would get {sum(got.values()):,} messages, as regular expressions say")

    def _replay(self) -> None:
        url = self._urls(0)[0]
        with channel_to(url) as channel:
            channel.exchange_declare(REPLAYED, exchange_type="fanout", durable=True)
            channel.queue_declare(REPLAYED, durable=True)
            channel.queue_bind(REPLAYED, REPLAYED, "#")
        self._job("replay", "--to", url, "--exchange", REPLAYED, "--where", ONE_DAY)
        found = []
        with channel_to(url) as channel:
            while (got := channel.basic_get(REPLAYED, auto_ack=True))[0] is not None:
                method, properties, body = got
                found.append((int(properties.message_id), method.routing_key, body, properties.delivery_mode))
        chosen = self._frame.index[(self._frame["month"] == MONTH) & (self._frame["day"] == DAY)]
        published = [(*flight, 2) for flight in read_flights(self._flights, 0, len(self._keys)) if flight[0] in chosen]
        self._expect("messages replayed", sorted(found), published)
        self._tell(f"{len(found):,} flights of {DAY}/{MONTH}/2013 replayed, byte by byte what was published")

    # -- commands -----------------------------------------------------------------------------------------------------

    def _job(self, name: str, *words: str) -> Any:
        how = ("--lake", self._lake, *words, "--master", self._options.master)
        return json.loads(self._do("pipeline", name, *how, "--json"))

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
