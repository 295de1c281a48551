"""Starts and stops the brokers that are measured, each as it is shipped, in folders and on ports of its own."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.faults import Refusal
from bench.peer import Address, Peer
from bench.process_tree import ProcessTree

PROJECT = Path(__file__).resolve().parent.parent
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 20.0
_OPEN_FILES = 65_536  # epmd and the Erlang machine walk the whole range of descriptors when they start
_READY = re.compile(r"amqps?://(?:[^\s@/]*@)?([\w.\-]+|\[[0-9a-f:]+\]):(\d+)")
_RABBITMQ_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server")


class NotStarted(Exception):
    """A broker did not become ready."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker: where it listens, and its processes when they are ours to look at."""

    name: str
    address: Address
    processes: ProcessTree | None = None
    folder: Path | None = None
    relay: bool = False

    def product(self) -> str:
        """Return the product and version that the broker announces.

        Raises: NotStarted when it cannot be reached or lets us not in.
        """
        try:
            peer = Peer(self.address, 1)
        except (OSError, Refusal) as error:
            place = f"{self.address.host}:{self.address.port}"
            raise NotStarted(f"{self.name} at {place} cannot be used: {error}") from None
        peer.close()
        return peer.product

    def disk_bytes(self) -> int:
        """Return what the data folder takes on disk, 0 when it is not known."""
        if not self.folder:
            return 0
        total = 0
        for path in self.folder.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except OSError:
                continue  # deleted in between: a segment came free
        return total


@contextmanager
def slotmq(
    folder: Path, *, options: Sequence[str] = (), prefix: Sequence[str] = (), package: Path = PROJECT
) -> Iterator[Broker]:
    """Run SlotMQ as a subprocess; `prefix` are interpreter options, such as a profiler's, `package` is where it is.

    Raises: NotStarted.
    """
    store = folder / "slotmq"
    command = [sys.executable, *prefix, "-m", "broker", "serve", "--port", "0", "--data-dir", str(store), *options]
    with _running(command, folder / "slotmq.log", {"PYTHONPATH": str(package)}) as process:
        host, port = _await_ready_line(process, folder / "slotmq.log")
        yield Broker("SlotMQ", Address(host, port), ProcessTree(process.pid), store)


@contextmanager
def relay() -> Iterator[Broker]:
    """Run the bare relay, the generator's own ceiling.

    Raises: NotStarted.
    """
    command = [sys.executable, "-m", "bench.relay"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        line = process.stdout.readline().decode() if process.stdout else ""
        if not line:
            raise NotStarted("the bare relay did not start")
        yield Broker("relay", Address.parse(line.strip()), ProcessTree(process.pid), relay=True)
    finally:
        if process.stdin:
            process.stdin.close()
        _stop(process)


def rabbitmq_script() -> str | None:
    """Return the installed rabbitmq-server script, None when there is none.

    Distributions wrap it to change the user and the folder; what stands behind the wrapper runs as anybody.
    """
    for path in _RABBITMQ_SCRIPTS:
        if os.access(path, os.X_OK):
            return path
    return shutil.which("rabbitmq-server")


@contextmanager
def rabbitmq(folder: Path, script: str) -> Iterator[Broker]:
    """Run RabbitMQ as it is shipped, without plugins, on loopback only, with its own node name, cookie and epmd.

    Raises: NotStarted.
    """
    _bound_open_files()
    home = folder / "rabbitmq"
    (home / "log").mkdir(parents=True)
    ports = _free_ports(3)
    environment = _rabbitmq_environment(home, *ports)
    epmd = shutil.which("epmd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/lib/erlang/bin")
    if not epmd:
        raise NotStarted("rabbitmq-server is installed, but epmd is not on the path")
    log = home / "log" / "started.log"
    with (
        _running([epmd, "-port", str(ports[0]), "-address", "127.0.0.1"], home / "log" / "epmd.log", environment),
        _running([script], log, environment) as process,
    ):
        address = Address("127.0.0.1", ports[1])
        _await_handshake(process, address, log)
        yield Broker("RabbitMQ", address, ProcessTree(process.pid), home / "mnesia")


def _rabbitmq_environment(home: Path, epmd_port: int, port: int, distribution_port: int) -> dict[str, str]:
    plugins = home / "enabled_plugins"
    plugins.write_text("[].\n")
    settings = home / "rabbitmq.conf"
    settings.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    nothing = home / "rabbitmq-env.conf"
    nothing.write_text("")
    arguments = "-kernel inet_dist_use_interface {127,0,0,1}"
    return {
        "HOME": str(home),  # where Erlang keeps the cookie
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"slotmq_bench_{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
        "RABBITMQ_SCHEMA_DIR": str(home / "schema"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_CONFIG_FILE": str(settings),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(nothing),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": arguments,
    }


@contextmanager
def _running(command: Sequence[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that writes into `log`, and stop it by its pid afterwards."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_clean_environment() | environment,
            cwd=log.parent,
            start_new_session=True,  # Ctrl-C reaches the bench, which then stops its brokers in order
        )
    try:
        yield process
    finally:
        _stop(process)


def _clean_environment() -> dict[str, str]:
    """Return our environment without the settings of any broker, so that each runs as it is shipped."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("SLOTMQ_", "RABBITMQ_"))}


def _bound_open_files() -> None:
    """Lower our own limit, which the brokers inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children: asked first, killed by pid when that took too long."""
    pids = ProcessTree(process.pid).pids()
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        for pid in pids:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        process.wait()


def _await_ready_line(process: subprocess.Popen[bytes], log: Path) -> tuple[str, int]:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        match = _READY.search(log.read_text(errors="replace"))
        if match:
            return match[1].strip("[]"), int(match[2])
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise NotStarted(f"SlotMQ did not become ready; it said:\n{_tail(log)}")


def _await_handshake(process: subprocess.Popen[bytes], address: Address, log: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            Peer(address, 1).close()
        except (OSError, Refusal):
            time.sleep(0.2)
        else:
            return
    raise NotStarted(f"RabbitMQ did not become ready; it said:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now; all are held until all are known, so they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
