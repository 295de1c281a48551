"""The RabbitMQ to compare with: a running one, or one that the tests start on loopback with its own data folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.broker_process import BrokerAddress
from tests.deadline import PAUSE_S
from tests.differential.link import PROTOCOL_HEADER
from tests.differential.wire import decode_method

__all__ = ["ORACLE_URL", "major_version", "own_oracle", "rabbitmq_script", "running_oracle"]

ORACLE_URL = os.environ.get("SLOTMQ_TEST_ORACLE_URL")
_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server")
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 20.0


def rabbitmq_script() -> str | None:
    """Return the installed rabbitmq-server, or None.

    Distributions wrap it to change the user and the folder; the wrapped script, preferred here, runs as any user.
    """
    found = next((path for path in _SCRIPTS if os.access(path, os.X_OK)), None)
    return found or shutil.which("rabbitmq-server")


def major_version(address: BrokerAddress) -> int:
    """Return the first number of the version that a broker announces."""
    with socket.create_connection((address.host, address.port), _STOP_LIMIT_S) as connection:
        connection.sendall(PROTOCOL_HEADER)
        with connection.makefile("rb") as stream:
            _, _, size = struct.unpack(">BHI", stream.read(7))
            _, fields = decode_method(stream.read(size))
    return int(fields["server_properties"]["version"].split(".")[0])


def _epmd() -> str | None:
    return shutil.which("epmd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/lib/erlang/bin")


@contextmanager
def running_oracle(folder: Path) -> Iterator[BrokerAddress]:
    """Yield the address of RabbitMQ, and stop it afterwards if it was started here. Raises FileNotFoundError."""
    if ORACLE_URL:
        yield BrokerAddress.parse(ORACLE_URL)
        return
    with own_oracle(folder) as (address, _):
        yield address


@contextmanager
def own_oracle(
    folder: Path, *plugins: str, settings: Sequence[str] = ()
) -> Iterator[tuple[BrokerAddress, Callable[..., str]]]:
    """Start a RabbitMQ, yield its address and a function that runs its rabbitmqctl, and stop it afterwards.

    `settings` are lines to append to its rabbitmq.conf.
    Raises FileNotFoundError when it is not installed.
    """
    script, epmd = rabbitmq_script(), _epmd()
    if script is None or epmd is None:
        raise FileNotFoundError("rabbitmq-server is not installed, and SLOTMQ_TEST_ORACLE_URL names no running one")
    (folder / "log").mkdir(parents=True)
    ports = _free_ports(3)
    environment = _environment(folder, *ports)
    with (folder / "rabbitmq.conf").open("a") as conf:
        conf.writelines(f"{line}\n" for line in settings)
    (folder / "enabled_plugins").write_text(f"[{','.join(['rabbitmq_consistent_hash_exchange', *plugins])}].\n")

    def control(*words: str) -> str:
        command = [str(Path(script).with_name("rabbitmqctl")), "--node", environment["RABBITMQ_NODENAME"], *words]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
        return ran.stdout

    with (
        _running([epmd, "-port", str(ports[0]), "-address", "127.0.0.1"], folder, "epmd", environment),
        _running([script], folder, "rabbitmq", environment) as process,
    ):
        address = BrokerAddress("127.0.0.1", ports[1])
        _await_greeting(process, address, folder)
        yield address, control


def _environment(folder: Path, epmd_port: int, port: int, distribution_port: int) -> dict[str, str]:
    """Return an environment in which RabbitMQ reads and writes nothing outside the folder."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("SLOTMQ_", "RABBITMQ_"))}
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    (folder / "rabbitmq-env.conf").write_text("")
    return kept | {
        "HOME": str(folder),  # the folder of Erlang's cookie
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"slotmq_test_{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_IO_THREAD_POOL_SIZE": "8",
    }


@contextmanager
def _running(
    command: list[str], folder: Path, name: str, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in a new process group, and end the whole group afterwards: the script starts the Erlang VM."""
    # Erlang visits every possible descriptor when it starts, and some machines allow 10⁹.
    bounded = ["/bin/sh", "-c", 'ulimit -n 65536 2>/dev/null; exec "$@"', "sh", *command]
    with (folder / "log" / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(
            bounded,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_greeting(process: subprocess.Popen[bytes], address: BrokerAddress, folder: Path) -> None:
    """Wait for connection.start: while RabbitMQ boots, it accepts connections but does not send it."""
    end = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with socket.create_connection((address.host, address.port), 5) as connection:
                connection.sendall(PROTOCOL_HEADER)
                if connection.recv(1) == b"\x01":
                    return
        except OSError:
            time.sleep(PAUSE_S * 10)
    output = (folder / "log" / "rabbitmq.out").read_text(errors="replace")
    raise AssertionError(f"RabbitMQ did not become ready; its output:\n{output[-2000:]}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
