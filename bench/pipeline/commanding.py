"""Measures commands as the shell runs them: with their own Spark and on a running Spark server, against peers.

Each contestant is a process of its own. Its CPU time is that of all processes that it started; for a command on the
server it includes the server's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.pipeline.stage import Stage, WrongResult
from broker.perf.process_tree import ProcessTree
from broker.pipeline.lake.lake import Lake

QUERY_ROWS = 1_000_000
ARCHIVE_ROWS = 300_000
SQL = "SELECT exchange, count(*), avg(length(body)) FROM messages GROUP BY exchange"
SPARK_START = "Spark's own start"
COLD = "cold"
WARM = "warm"
SPARK = "Spark alone"
BARE = "bare Python"
_LIMIT_S = 300.0
_PROBE = "bench.pipeline.command_probe"
_ALONE = "bench.pipeline.command_peers"


def measure(stage: Stage) -> dict[str, Any]:
    """Return seconds and CPU seconds of a query over 10^6 rows and of an archive of 300,000 messages."""
    shell = _Shell(stage.folder)
    asked, taken = stage.new_store("asked"), stage.new_store("taken")
    for store, rows in (asked, QUERY_ROWS), (taken, ARCHIVE_ROWS):
        store.add(rows)
        store.close()
    lake = stage.folder / "asked-lake"
    stage.archive(asked.path, lake, QUERY_ROWS)
    files = stage.folder / "asked.json"
    tables = Lake(lake).message_table
    files.write_text(json.dumps([str(tables.folder / file.path) for file in Lake(lake).files()]))
    shell.slotmq("server", "start", "--quiet")
    try:
        query = ("query", "--lake", str(lake), "--quiet", SQL)
        archive = ("archive", "--path", str(taken.path), "--no-seal", "--quiet", "--json", "--lake")
        return {
            "query": _race(
                stage,
                "query of 1,000,000 rows",
                {
                    SPARK_START: lambda _: shell.alone("start"),
                    SPARK: lambda _: shell.alone("query", str(files)),
                    BARE: lambda _: shell.alone("query-bare", str(files)),
                    COLD: lambda _: shell.slotmq(*query, "--cold"),
                    WARM: lambda _: shell.slotmq(*query, warm=True),
                },
            ),
            "archive": _race(
                stage,
                "archive of 300,000 messages",
                {
                    SPARK: lambda folder: shell.alone("copy", str(files), str(folder), str(ARCHIVE_ROWS)),
                    BARE: lambda folder: shell.alone("archive-bare", str(taken.path), str(folder)),
                    COLD: lambda folder: shell.slotmq(*archive, str(folder), "--cold"),
                    WARM: lambda folder: shell.slotmq(*archive, str(folder), warm=True),
                },
            ),
        }
    finally:
        shell.slotmq("server", "stop", "--quiet")


def _race(stage: Stage, what: str, contestants: dict[str, Callable[[Path], dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the median figures of contestants that run in turn; the first round does not count."""
    stage.show.begin("commands", (stage.plan.command_rounds + 1) * len(contestants))
    laps: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for turn in range(stage.plan.command_rounds + 1):
        for name, run in contestants.items():
            found = run(stage.folder / "commands" / f"{what}-{name}-{turn}".replace(" ", "-"))
            stage.show.step(f"{what}, {name}: {found['wall_s']:.1f} s")
            if turn:
                laps[name].append(found)
    rows = [
        {"name": name, "laps": own, **{key: round(median(lap[key] for lap in own), 2) for key in ("wall_s", "cpu_s")}}
        for name, own in laps.items()
    ]
    for row in rows:
        stage.show.tell(f"{what}: {row['name']}: {row['wall_s']} s, {row['cpu_s']} CPU-s")
    return rows


class _Shell:
    """A user with a cache folder of its own, and therefore a server of its own."""

    def __init__(self, folder: Path) -> None:
        cache = folder / "cache"
        cache.mkdir()
        self._state = cache / "slotmq" / "server.json"
        self._environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}

    def slotmq(self, *words: str, warm: bool = False) -> dict[str, float]:
        """Run a command of the pipeline, and return its time and CPU time."""
        server = ProcessTree(json.loads(self._state.read_text())["pid"]) if warm else None
        before_s = server.usage().cpu_s if server else 0.0
        found = self._run("broker", "pipeline", *words)
        found["cpu_s"] += server.usage().cpu_s - before_s if server else 0.0
        return found

    def alone(self, *words: str) -> dict[str, float]:
        """Run a peer, and return its time and CPU time."""
        return self._run(_ALONE, *words)

    def _run(self, *words: str) -> dict[str, float]:
        command = [sys.executable, "-m", _PROBE, sys.executable, "-m", *words]
        begun = time.perf_counter()
        done = subprocess.run(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise WrongResult(f"{' '.join(words[:3])} after {time.perf_counter() - begun:.0f} s: {done.stderr[-300:]}")
        found: dict[str, float] = json.loads(done.stderr.splitlines()[-1])
        return found
