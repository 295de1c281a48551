"""Debian's rabbitmqadmin, the Python script of RabbitMQ 3.x, run against a management API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[3]
FETCHED = PROJECT / "build" / "rabbitmqadmin"
"""The path to which `.ci/rabbitmqadmin` downloads the script on a machine without RabbitMQ."""
RUNS = Path(__file__).with_name("each_rabbitmqadmin.py")


def rabbitmqadmin_script() -> Path | None:
    """Return the script, or None if it is not installed or is RabbitMQ 4's program, which is no Python."""
    for found in (shutil.which("rabbitmqadmin"), FETCHED):
        if found is not None and Path(found).exists() and Path(found).read_bytes()[:64].find(b"python") > 0:
            return Path(found)
    return None


@dataclass(frozen=True)
class Printed:
    """The output of one run of the script."""

    code: int
    out: str
    err: str


class RabbitmqAdmin:
    """Runs the script in a separate process, once for each call."""

    def __init__(self, script: Path, home: Path, port: int) -> None:
        self.options = ["--host", "127.0.0.1", "--port", str(port)]
        environment = {
            **os.environ,
            "HOME": str(home),
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # no .rabbitmqadmin.conf
        self._process = subprocess.Popen(
            [sys.executable, str(RUNS), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, *words: str, said: str = "") -> Printed:
        """Run the script and return what it printed, whatever its exit code."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"words": [*self.options, *words], "input": said}), file=self._process.stdin, flush=True)
        return Printed(**json.loads(self._process.stdout.readline()))

    def say(self, *words: str, said: str = "") -> str:
        """Run the script, which must succeed, and return its output."""
        printed = self.run(*words, said=said)
        assert (printed.code, printed.err) == (0, ""), f"rabbitmqadmin {' '.join(words)}: {printed}"
        return printed.out

    def rows(self, *words: str) -> Any:
        """Run a list command, and return its rows."""
        return json.loads(self.say("--format", "raw_json", *words))

    def names(self, noun: str, *options: str) -> set[str]:
        """Return the names of a list."""
        return {row["name"] for row in self.rows(*options, "list", noun, "name")}

    def refusal(self, *words: str) -> str:
        """Run the script, which must fail with one line, and return that line."""
        printed = self.run(*words)
        assert (printed.code, printed.out) == (1, ""), f"rabbitmqadmin {' '.join(words)}: {printed}"
        assert printed.err.startswith("*** ") and len(printed.err.splitlines()) == 2, printed.err
        return printed.err.removeprefix("*** ").strip()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()
