"""The Spark server: shell commands through it, its access control, its end, and that nothing doubles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import PACKAGE, PROJECT
from tests.deadline import wait_until
from tests.delta_log import messages_of
from tests.pipeline.test_archive import orphans
from tests.slot_folders import make_slots, numbered

pytest.importorskip("pyspark")
pytest.importorskip("grpc")
pytestmark = pytest.mark.timeout(900)

SLOTS = 4
ROWS = 50
DEADLINE_S = 400.0


class Shell:
    """The command line of one user."""

    def __init__(self, home: Path) -> None:
        self.cache = home / "slotmq"
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(home), "PYTHONPATH": f"{PACKAGE}:{PROJECT}"}
        self.environment.pop("SLOTMQ_PIPELINE_WARM", None)

    def begin(self, *words: str, module: str = "broker", **more: Any) -> subprocess.Popen[str]:
        """Start a command and return its process."""
        return subprocess.Popen(
            [sys.executable, "-m", module, *words], env=self.environment, cwd=self.cache.parent, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[int, str, str]:
        """Return the exit code of a pipeline command and its output on both streams."""
        command = self.begin("pipeline", *words)
        said, told = command.communicate(timeout=DEADLINE_S)
        return command.returncode, said, told

    def state(self) -> dict[str, Any]:
        """Return the state files of the server."""
        found: dict[str, Any] = json.loads((self.cache / "server.json").read_text())
        return found


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Yield a user with a server that two concurrent commands started."""
    made = Shell(tmp_path_factory.mktemp("home"))
    words = ("pipeline", "server", "start", "--master", "local[2]", "--json", "--quiet")
    try:
        starts = [made.begin(*words) for _ in range(2)]
        answers = [start.communicate(timeout=DEADLINE_S) for start in starts]
        assert [start.returncode for start in starts] == [0, 0], answers
        assert len({json.loads(said)["pid"] for said, _ in answers}) == 1
        yield made
    finally:
        code, said, _ = made.run("server", "stop")
        assert (code, said.startswith("ended the Spark server with pid ")) == (0, True)
        assert made.run("server", "status")[:2] == (1, "no server runs\n")


def test_commands_use_the_server_and_say_so(shell: Shell, tmp_path: Path) -> None:
    """Archive and query run on the server, with paths relative to the user's folder, and start no other JVM."""
    make_slots(shell.cache.parent / "store", [list(numbered(ROWS))])
    first = f"session: the Spark server with pid {shell.state()['pid']} (local[2], 1g)"
    code, said, told = shell.run("archive", "--path", "store", "--lake", "lake", "--no-seal", "--json")
    assert code == 0, told
    assert told.splitlines()[0] == first
    assert json.loads(said)["rows"] == ROWS
    for where in ("--lake", "lake"), ("--path", "store"):
        code, said, told = shell.run("query", *where, "--csv", "SELECT count(*) AS n, max(offset) AS m FROM messages")
        assert (code, said, told.splitlines()[0]) == (0, f"n,m\n{ROWS},{ROWS}\n", first), told
    code, said, told = shell.run("query", "--lake", "lake", "SELECT carier FROM messages")
    assert (code, said) == (2, "")
    assert "`carier` cannot be resolved" in told.splitlines()[-1]


def test_nobody_without_the_token_gets_in(shell: Shell) -> None:
    """Only this user can read the state, the port is on loopback, the token is required and in no argument."""
    state = shell.state()
    assert (shell.cache / "server.json").stat().st_mode & 0o777 == 0o600
    asking = (
        "import sys; from pyspark.sql import SparkSession as S; S.builder.remote(sys.argv[1]).create().range(1).count()"
    )
    for name in ("localhost", "localhost/;token=wrong"):
        url = name.replace("localhost", f"sc://localhost:{state['port']}")
        done = subprocess.run(
            [sys.executable, "-c", asking, url], env=shell.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert "UNAUTHENTICATED" in done.stderr
    if Path("/proc/net/tcp").exists():
        port = f":{state['port']:04X}"
        tables = [Path(f"/proc/net/{name}").read_text().splitlines() for name in ("tcp", "tcp6")]
        bound = [line.split()[1] for table in tables for line in table if line.split()[1].endswith(port)]
        assert bound
        assert all(each.startswith(("0100007F", "0" * 16 + "FFFF00000100007F")) for each in bound)
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not any(state["token"].encode() in line for line in lines)


@pytest.mark.parametrize("point", ["files", "entry"])
def test_a_warm_archive_that_is_killed_goes_on_with_each_message_once(shell: Shell, tmp_path: Path, point: str) -> None:
    """The command dies, the server lives: the job commits nothing more, and the next run has each row once."""
    folder = make_slots(tmp_path / "store", [list(numbered(ROWS, start=ROWS * at)) for at in range(SLOTS)])
    lake = tmp_path / "lake"
    dying = shell.begin(str(folder.path), str(lake), point, "1", "warm", module="tests.pipeline.archive_driver")
    _, told = dying.communicate(timeout=DEADLINE_S)
    assert dying.returncode == -signal.SIGKILL, told
    assert len(messages_of(lake)) == ROWS * (1 if point == "files" else 2)
    code, _, told = shell.run("archive", "--path", str(folder.path), "--lake", str(lake), "--no-seal")
    assert code == 0, told
    assert messages_of(lake) == list(range(1, SLOTS * ROWS + 1))
    assert not orphans(lake)


@pytest.mark.torture
def test_an_idle_server_ends_and_a_killed_one_is_gone(tmp_path: Path) -> None:
    """An idle or killed server leaves no state; the next command works without it."""
    idle = Shell(tmp_path)
    assert idle.run("server", "start", "--idle", "1s", "--master", "local[1]", "--quiet")[0] == 0
    wait_until(lambda: not (idle.cache / "server.json").exists(), "the idle server ends", DEADLINE_S)
    assert idle.run("server", "start", "--master", "local[1]", "--quiet")[0] == 0
    os.kill(idle.state()["pid"], signal.SIGKILL)
    code, said, _ = idle.run("server", "status")
    assert (code, said) == (1, "no server runs\n")
    assert not (idle.cache / "server.json").exists()


def test_what_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    """Wrong arguments and a JVM that refuses its settings end with one line; no state is left."""
    alone = Shell(tmp_path)
    for words in (("--memory", "much"), ("--idle", "soon")):
        code, said, told = alone.run("server", "start", *words)
        assert (code, said, len(told.splitlines())) == (2, "", 1)
    code, said, told = alone.run("server", "start", "--quiet", "--memory", "1m")
    assert (code, said) == (1, "")
    assert told.startswith("slotmq: Spark did not start on the Java in ")
    assert len(told.splitlines()) == 1
    assert not (alone.cache / "server.json").exists()
