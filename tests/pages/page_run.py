"""Runs the blocks of one page in order, in their own folder, with a broker on the ports that the page names."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import fcntl
import inspect
import io
import os
import pty
import random
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from broker.cli.main import main
from tests.broker_process import PACKAGE, READY_LINE, RESERVE_BYTES
from tests.deadline import DEADLINE_S, PAUSE_S
from tests.pages.clone import environment_of
from tests.pages.page import Block, Command, blocks, commands, same_output

__all__ = ["PageRun", "run_pytest"]

PORTS = (1883, 5671, 5672, 15672, 15692)
INSTALL = re.compile(r"python3 -m venv |\S*pip install |export PATH=")
JOB = re.compile(r"(?:\S*/)?slotmq (?P<words>pipeline .+)", re.DOTALL)
RELATIVE = re.compile(
    r"""((?:"(?:path|slots|checkpointLocation|badRecords)", |\b(?:start|load|parquet|Path)\(|\(path )["'])(?=\w)"""
)
"""The code before a relative path in a Spark block; Spark's processes run in another folder."""
SERVE = re.compile(r"^(?:\w+=\S+ +)*(?:\S*/)?slotmq serve\b")
ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
HOME = "/home/me"


def free_host() -> str:
    """Return a loopback address on which all ports of a page's broker are free."""
    while True:
        host = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in PORTS:
                stack.enter_context(contextlib.closing(socket.socket())).bind((host, port))
            return host


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder without this project's configuration."""
    (folder / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    command = [sys.executable, "-X", "dev", "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider"]
    environment = {**os.environ, "SLOTMQ_SERVER__HOST": "256.0.0.1"}  # the brokers of tests ignore it
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


class PageRun:
    """The folder, the broker and the Python names of one page.

    In a clone, the page's commands install the broker. With Spark, jobs run in this process, which already has a Spark
    session.
    """

    def __init__(self, folder: Path, *, in_clone: bool = False, spark: bool = False) -> None:
        self.folder = folder
        self.spark = spark
        self.host = free_host()
        self.broker: subprocess.Popen[bytes] | None = None
        self.spark_server = False
        self.names: dict[str, Any] = {"pika": pika}
        ours = ("SLOTMQ_", "RABBITMQ_")
        scripts = Path(sys.executable).parent
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "PYTHONPATH": str(PACKAGE),
            "SLOTMQ_SERVER__HOST": self.host,
            "SLOTMQ_STORE__RESERVE_BYTES": RESERVE_BYTES,
            "TERM": "dumb",
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / ".cache"),
        }
        if in_clone:
            tools = folder / ".tools"
            tools.mkdir()
            del self.environment["PYTHONPATH"]
            self.environment |= environment_of(folder, tools)
        else:
            (folder / ".venv").mkdir()
            (folder / ".venv" / "bin").symlink_to(scripts)

    def run(self, page: Path) -> int:
        """Run the blocks of the page, and return how many ran."""
        runnable = [block for block in blocks(page) if block.language in ("console", "python") and not block.not_run]
        chosen = [block for block in runnable if self.spark or not block.spark]
        for block in chosen:
            where = f"{page.name}:{block.line}"
            if "def test_" in block.text:
                (self.folder / ".page_tests").mkdir(exist_ok=True)
                (self.folder / ".page_tests" / f"test_page_{block.line}.py").write_text(block.text)
            elif block.language == "console":
                self.spark_server = "pipeline server" in block.text
                in_shell = not self.spark or self.spark_server
                for command in commands(block):
                    self._console(command, where, block.varies, in_shell)
            else:
                self._python(block, where)
        if (self.folder / ".page_tests").exists():
            ran = run_pytest(self.folder / ".page_tests")
            assert ran.returncode == 0, f"{page.name}\n{ran.stdout}{ran.stderr}"
        return len(chosen)

    def broker_package(self) -> str:
        """Return the file of the `broker` package that the page's commands import."""
        return self._in_terminal("cd /; python -c 'import broker; print(broker.__file__)'")[1][0]

    def close(self) -> None:
        """End the broker, a Spark server, and the connection of the page's Python blocks."""
        if self.spark_server:
            self._in_terminal("slotmq pipeline server stop")
            self.spark_server = False
        channel = self.names.get("channel")
        if channel is not None and channel.connection.is_open:
            with contextlib.suppress(AMQPError):  # the page may have stopped the broker
                channel.connection.close()
        if self.broker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.broker.pid, signal.SIGKILL)
            self.broker.wait()
            self.broker = None

    # ---- console

    def _console(self, command: Command, where: str, varies: bool, in_shell: bool) -> None:
        text = self._here(command.text)
        if SERVE.match(text):
            self.close()
            self.names.pop("channel", None)
            printed = self._serve(text.rstrip(" &"))
            assert not command.shown or same_output(command.shown, [printed]), f"{where}: {printed!r}"
            return
        job = None if in_shell else JOB.match(text)
        if job is None and not INSTALL.match(text):
            self._need_broker()
        if text.startswith("curl ") and shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        code, printed_lines = self._in_terminal(text) if job is None else self._in_process(job["words"])
        told = f"{where}: $ {command.text}\nexit code {code}\n" + "\n".join(printed_lines)
        assert (code != 0) == command.may_fail, told
        assert varies or not command.shown or same_output(command.shown, printed_lines), told

    def _in_terminal(self, text: str) -> tuple[int, list[str]]:
        """Run a shell command with a terminal as output; return its exit code and lines."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 250, 0, 0))
        with subprocess.Popen(
            ["bash", "-c", text], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=theirs, stderr=theirs, start_new_session=True,
        ) as process:  # fmt: skip
            os.close(theirs)
            printed = bytearray()
            with contextlib.suppress(OSError):  # EIO, the end of a terminal's output on Linux
                while chunk := os.read(ours, 65536):
                    printed += chunk
            os.close(ours)
            code = process.wait(DEADLINE_S)
        lines = ESCAPES.sub("", printed.decode()).replace("\r\n", "\n").split("\n")
        return code, [self._there(line.rpartition("\r")[2]) for line in lines if line.strip("\r ")]

    def _in_process(self, text: str) -> tuple[int, list[str]]:
        """Run a slotmq command in this process; return its exit code, and the lines of output and errors."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(shlex.split(text, comments=True))
        errors = [line for line in err.getvalue().splitlines() if line.startswith("slotmq: ")]
        lines = [line for line in out.getvalue().splitlines() if line.strip()] + errors
        return code, [self._there(line) for line in lines]

    def _serve(self, text: str) -> str:
        """Start a broker with a command of the page, and return its ready line."""
        out, log = self.folder / "serve.out", self.folder / "serve.log"
        with out.open("wb") as to, log.open("wb") as log_to:
            self.broker = subprocess.Popen(
                ["bash", "-c", f"exec env {text}"], cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=to, stderr=log_to, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + DEADLINE_S
        while True:
            for line in out.read_text().splitlines():
                if READY_LINE.search(line):
                    return self._there(line)
            assert self.broker.poll() is None, f"$ {text}\n{log.read_text()}"
            assert time.monotonic() < end, f"$ {text}: no ready line\n{log.read_text()}"
            time.sleep(PAUSE_S)

    def _need_broker(self) -> None:
        if self.broker is None or self.broker.poll() is not None:
            self._serve("slotmq serve")

    def _here(self, text: str) -> str:
        return text.replace("127.0.0.1", self.host).replace("localhost", self.host)

    def _there(self, text: str) -> str:
        return text.replace(self.host, "127.0.0.1").replace(str(self.folder), HOME)

    # ---- Python

    def _python(self, block: Block, where: str) -> None:
        text = self._here(block.text)
        if block.spark:
            text = RELATIVE.sub(rf"\g<1>{self.folder}/", text)
        if "channel" in text:
            self._need_broker()
        if "channel" in text and "channel" not in self.names and "channel = " not in text:
            self.names["channel"] = pika.BlockingConnection(pika.ConnectionParameters(self.host)).channel()
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile("\n" * block.line + text, where, "exec", flags=flags)
        with contextlib.chdir(self.folder):
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(eval(code, self.names))
            else:
                exec(code, self.names)
