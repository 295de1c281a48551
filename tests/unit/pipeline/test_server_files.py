"""The files of a Spark server: its user's commands find it by them, and it knows when it is unused; without Spark."""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from broker.pipeline import job as session_choice
from broker.pipeline.faults import JobFailed, ServerRefused
from broker.pipeline.job import Progress, choose_session
from broker.pipeline.jobs import server as server_job
from broker.pipeline.jobs.server import ServerOptions, run_server
from broker.pipeline.spark.server import stop, versions
from broker.pipeline.spark.server_files import ServerFiles, ServerRequest, ServerState
from broker.pipeline.spark.server_process import PRELOADED

STATE = ServerState(
    pid=os.getpid(), port=1, token="secret", master="local[2]", cores=2, memory="1g", idle_s=60.0,
    python=sys.prefix, versions=versions(), began="2026-11-22T10:00:00+00:00", log="log",
)  # fmt: skip
HOLD = """
import sys, pathlib
from broker.pipeline.spark.server_files import ServerFiles
files = ServerFiles(pathlib.Path(sys.argv[1]))
print(getattr(files, sys.argv[2])() is not None, flush=True)
sys.stdin.read()
"""


def holding(folder: Path, verb: str) -> subprocess.Popen[str]:
    """Return another process that did one operation with the files and keeps its locks."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), verb], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    return other


def end(other: subprocess.Popen[str]) -> None:
    """End the process."""
    other.kill()
    other.communicate()


def test_a_state_that_an_accident_left_behind_is_no_server(tmp_path: Path) -> None:
    """The lock says whether the server lives, whatever process has its id now."""
    files = ServerFiles(tmp_path)
    server = holding(tmp_path, "live")
    files.write(STATE)
    assert files.alive() and files.read() == STATE
    assert stat.S_IMODE((tmp_path / "server.json").stat().st_mode) == 0o600
    assert "secret" not in repr(STATE) and "secret" not in str(STATE)
    end(server)
    assert files.use() is None
    assert not (tmp_path / "server.json").exists()


def test_a_server_in_use_does_not_retire(tmp_path: Path) -> None:
    """The server ends when no command uses it, however that ended; a later command finds no server."""
    files = ServerFiles(tmp_path)
    assert files.live()
    files.write(STATE)
    command = holding(tmp_path, "use")
    assert files.last_used_s() is None
    assert not files.retire()
    end(command)
    assert files.last_used_s() is not None
    assert files.retire()
    assert files.use() is None


def broken(path: Path, change: str) -> None:
    """Make a state one that is not trusted or not understood."""
    if change == "mode":
        path.chmod(0o644)
    else:
        path.write_bytes({"format": b'{"format": 99}', "text": b"[", "octets": b"\xff"}[change])


BROKEN = pytest.mark.parametrize("change", ["mode", "format", "text", "octets"])


@BROKEN
def test_a_state_that_is_not_ours_is_refused(tmp_path: Path, change: str) -> None:
    """A state that others can read, of another version, or invalid, is refused with one line each."""
    files = ServerFiles(tmp_path)
    assert files.live()
    files.write(STATE)
    broken(tmp_path / "server.json", change)
    with pytest.raises(ServerRefused, match=r"not trusted|another version|cannot be read"):
        files.use()
    assert files.last_used_s() is not None


def arguments(**given: Any) -> argparse.Namespace:
    """Return the arguments that `add_spark` parses from nothing, with changes."""
    words: dict[str, Any] = {"warm": False, "cold": False, "master": None, "driver_memory": None, "conf": []}
    return argparse.Namespace(**words | given)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFiles:
    """Return the files of a running server at the place where commands look for it."""
    folder = tmp_path / "slotmq"
    folder.mkdir()
    found = ServerFiles(folder)
    assert found.live()
    found.write(STATE)
    for module in (session_choice, server_job):
        monkeypatch.setattr(module, "files", lambda: found)
    monkeypatch.delenv(session_choice.ALWAYS_WARM, raising=False)
    return found


def test_a_command_says_which_session_it_uses(files: ServerFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command uses a server that fits its arguments, else its own Spark, and prints the reason."""
    monkeypatch.setattr(session_choice, "incompatibility", lambda _: "")
    pid = os.getpid()
    assert str(choose_session(arguments())) == f"session: the Spark server with pid {pid} (local[2], 1g)"
    assert choose_session(arguments(conf=[("spark.sql.ansi.enabled", "false")])).server == STATE
    for given, said in (
        ({"cold": True}, "--cold"),
        ({"master": "local[4]"}, "--master local[4]"),
        ({"driver_memory": "2g"}, "--driver-memory 2g"),
        ({"conf": [("spark.ui.enabled", "true")]}, "--conf spark.ui.enabled"),
    ):
        assert str(choose_session(arguments(**given))) == f"session: Spark of its own ({said})"
    with pytest.raises(ServerRefused, match=r"^--warm and --master local\[4\]: the server has its own"):
        choose_session(arguments(warm=True, master="local[4]"))
    files.remove()
    assert str(choose_session(arguments())) == "session: Spark of its own (no server runs: --warm starts one)"


def test_a_start_with_other_options_is_refused(files: ServerFiles) -> None:
    """A start with other Spark settings than those of the running server is refused; status reports that server."""
    files.write(replace(STATE, conf={"spark.a": "b"}))
    request = ServerRequest(STATE.master, STATE.memory, STATE.idle_s, {"spark.a": "c"})
    with pytest.raises(ServerRefused, match="is already running"):
        run_server(ServerOptions("start", request), Progress("server", quiet=True))
    values = run_server(ServerOptions("status"), Progress("server", quiet=True)).values
    assert values["pid"] == STATE.pid and not {"token", "conf"} & set(values)


def test_what_a_server_loads_first_is_there() -> None:
    """The modules that a server loads first exist; no import statement names them."""
    for name in PRELOADED:
        import_module(name)


def test_a_server_of_another_version_is_not_used(files: ServerFiles) -> None:
    """A command continues without a server of another version, or is refused if it requires a server."""
    files.write(replace(STATE, versions="SlotMQ 0.0, PySpark 3.5"))
    assert "it runs SlotMQ 0.0, PySpark 3.5, this is" in str(choose_session(arguments()))
    with pytest.raises(ServerRefused, match=r"slotmq pipeline server stop$"):
        choose_session(arguments(warm=True))


@BROKEN
def test_a_broken_state_blocks_no_command(files: ServerFiles, change: str) -> None:
    """A command says in its first line why it has a Spark of its own; one that requires a server is refused."""
    broken(files.folder / "server.json", change)
    assert str(choose_session(arguments())).startswith(f"session: Spark of its own ({files.folder}/server.json ")
    with pytest.raises(ServerRefused, match=r"slotmq pipeline server stop$"):
        choose_session(arguments(warm=True))


@BROKEN
def test_a_server_with_a_broken_state_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A stop removes the state and ends the process that holds the lock; without one, it removes the state."""
    files = ServerFiles(tmp_path)
    monkeypatch.setattr(server_job, "files", lambda: files)
    server = holding(tmp_path, "live")
    for ended in (server.pid, None):
        files.write(STATE)
        broken(tmp_path / "server.json", change)
        assert run_server(ServerOptions("stop"), Progress("server", quiet=True)).values == {"ended": ended}
        assert not (tmp_path / "server.json").exists() and not files.alive()
    end(server)


def test_a_stop_trusts_no_pid_that_others_may_have_written(tmp_path: Path) -> None:
    """The holder of a lock whose file others may write is not ended, but named by its file."""
    files = ServerFiles(tmp_path)
    assert files.live() and files.holder() == os.getpid()
    files.write(STATE)
    broken(tmp_path / "server.json", "text")
    (tmp_path / "server.alive").chmod(0o666)
    with pytest.raises(JobFailed, match=r"^end the process that has locked .*server\.alive$"):
        stop(files)
