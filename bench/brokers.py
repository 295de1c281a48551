"""Starts and stops the measured brokers, each in its shipped configuration, with its own folders and ports."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import Final

from bench.service import WITHOUT_HTTP, BrokerFailed, Service
from broker.perf import conductor
from broker.perf.faults import Refusal, RunFailed
from broker.perf.machine import ProcessTree
from broker.perf.peer import Address, PeerConnection
from broker.perf.wire import PUBLISH_CHANNEL

_OPENSSL: Final = "openssl"
_REQUEST: Final = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=slotmq-bench -addext subjectAltName=IP:127.0.0.1"
)  # ECDSA on P-256, as public authorities issue them

PROJECT = Path(__file__).resolve().parent.parent
_READY = re.compile(r"amqps?://(?:[^\s@/]*@)?([\w.\-]+|\[[0-9a-f:]+\]):(\d+)")
_MOSQUITTO_READY = re.compile(r"(mosquitto version \S+) running")
_RABBITMQ_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server")
VHOST, OTHER_VHOST = "bench", "bench-other"
RIGHTS = r"^(bench|slotmq-perf-|amq\.default$)"
"""The names that either user may configure, write and read: those that the load declares, and the default exchange."""
_PASSWORDS = {VHOST: "bench-password", OTHER_VHOST: "other-password"}


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1 and its key, in PEM."""

    file: Path
    key_file: Path

    @classmethod
    def issue(cls, folder: Path) -> Certificate | None:
        """Create a certificate and its key; return None if openssl is missing or fails."""
        if not shutil.which(_OPENSSL):
            return None
        made = cls(folder / "certificate.pem", folder / "key.pem")
        command = [_OPENSSL, *_REQUEST.split(), "-keyout", str(made.key_file), "-out", str(made.file)]
        done = subprocess.run(command, capture_output=True, check=False)
        return None if done.returncode else made

    def address(self, plain: Address, port: int) -> Address:
        """Return the address of a broker's port with TLS."""
        return replace(plain, port=port, tls=True, ca_file=str(self.file))

    def settings(self, port: int) -> dict[str, str]:
        """Return the settings of SlotMQ for a port with TLS."""
        return {
            "SLOTMQ_TLS__PORT": str(port),
            "SLOTMQ_TLS__CERTFILE": str(self.file),
            "SLOTMQ_TLS__KEYFILE": str(self.key_file),
        }

    def rabbitmq_lines(self, port: int) -> str:
        """Return the lines of rabbitmq.conf for a port with TLS."""
        files = {"cacertfile": self.file, "certfile": self.file, "keyfile": self.key_file}
        lines = [f"listeners.ssl.1 = 127.0.0.1:{port}", "ssl_options.verify = verify_none"]
        lines += ["ssl_options.fail_if_no_peer_cert = false"]
        return "\n".join([*lines, *(f"ssl_options.{name} = {path}" for name, path in files.items())]) + "\n"


def write_definitions(path: Path) -> Path:
    """Write the definitions that a measured broker loads at its start, and return the file.

    Each user has the name of its vhost. guest is included, because initial definitions with users replace it.
    """
    users = [{"name": name, "password": password, "tags": ""} for name, password in _PASSWORDS.items()]
    rights = [_permission(name, name, RIGHTS) for name in _PASSWORDS]
    document = {
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}, *users],
        "vhosts": [{"name": "/"}, *({"name": name} for name in _PASSWORDS)],
        "permissions": [_permission("guest", "/", ".*"), *rights],
    }
    path.write_text(json.dumps(document, indent=1))
    return path


def tenant(address: Address, vhost: str) -> Address:
    """Return the address of the broker for the user of a vhost."""
    return replace(address, user=vhost, password=_PASSWORDS[vhost], vhost=vhost)


def _permission(user: str, vhost: str, pattern: str) -> dict[str, str]:
    return {"user": user, "vhost": vhost, "configure": pattern, "write": pattern, "read": pattern}


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker: its address, and its processes if we may inspect them.

    Shapes: `other` is the address for a second user with its own vhost; `tls` and `mqtt` are the addresses of the
        ports for TLS and MQTT.
    Units: `idle_bytes` is the resident memory right after the start, 0 if unknown.
    """

    name: str
    address: Address
    processes: ProcessTree | None = None
    folder: Path | None = None
    relay: bool = False
    other: Address | None = None
    started: Service | None = None
    tls: Address | None = None
    idle_bytes: int = 0
    mqtt: Address | None = None
    version: str = ""

    @property
    def service(self) -> Service:
        """The process of a broker that the bench started. Raises: BrokerFailed for another broker."""
        if not self.started:
            raise BrokerFailed(f"{self.name} was not started here")
        return self.started

    def product(self) -> str:
        """Return the product and version that the broker announces, or `version` if it is known.

        Raises: BrokerFailed when the broker is unreachable or refuses the login.
        """
        if self.version:
            return self.version
        try:
            peer = PeerConnection(self.address, 1)
        except (OSError, Refusal) as error:
            place = f"{self.address.host}:{self.address.port}"
            raise BrokerFailed(f"{self.name} at {place} cannot be used: {error}") from None
        peer.close()
        return peer.product

    def disk_bytes(self) -> int:
        """Return the size of the data folder on disk, 0 if unknown."""
        if not self.folder:
            return 0
        total = 0
        for path in self.folder.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except OSError:
                continue  # deleted meanwhile: the broker freed a segment
        return total

    def count(self, queue: str) -> int:
        """Declare a durable queue, and return its number of messages."""
        with closing(PeerConnection(self.address, PUBLISH_CHANNEL)) as peer:
            return peer.declare_queue(queue, durable=True)

    def delete(self, queue: str, exchange: str = "") -> None:
        """Delete a queue, and an exchange: by default the one with the name of the queue."""
        with closing(PeerConnection(self.address, PUBLISH_CHANNEL)) as peer:
            peer.delete(queue, exchange or queue)

    def restart(self, *, killed: bool) -> float:
        """Stop or kill the broker, start it on the same folder, and return the seconds until it accepts a client.

        Raises: BrokerFailed, also for a broker that the bench did not start.
        """
        self.service.stop(killed=killed)
        begun = time.monotonic()
        self.service.start()
        self.service.await_handshake(self.address)
        return time.monotonic() - begun


def with_tenants(broker: Broker) -> Broker:
    """Return the broker with addresses for the two users of `write_definitions`."""
    return replace(
        broker,
        address=tenant(broker.address, VHOST),
        other=tenant(broker.address, OTHER_VHOST),
        tls=tenant(broker.tls, VHOST) if broker.tls else None,
    )


@contextmanager
def slotmq(
    folder: Path,
    *,
    options: Sequence[str] = (),
    wrapper: Sequence[str] = (),
    prefix: Sequence[str] = (),
    package: Path = PROJECT,
    name: str = "SlotMQ",
    tenants: bool = False,
    variables: Mapping[str, str] | None = None,
    certificate: Certificate | None = None,
    mqtt: bool = False,
) -> Iterator[Broker]:
    """Run SlotMQ as a subprocess.

    `wrapper` is a program that runs the interpreter, such as valgrind with its options; `prefix` has options of the
    interpreter, such as a profiler; `package` is the folder to import the broker from. `variables` are settings in the
    environment; HTTP is off by default, as in RabbitMQ without a plugin. `certificate` adds a TLS port, `mqtt` a port
    for MQTT.

    Raises: BrokerFailed.
    """
    store = folder / "slotmq"
    tls_port = _free_ports(1)[0] if certificate else 0
    mqtt_port = _free_ports(1)[0] if mqtt else 0
    settings = {**WITHOUT_HTTP, **(certificate.settings(tls_port) if certificate else {}), **(variables or {})}
    if mqtt:
        settings |= {"SLOTMQ_MQTT__ENABLED": "true", "SLOTMQ_MQTT__PORT": str(mqtt_port)}
    command = [*wrapper, sys.executable, *prefix, "-m", "broker", "serve", "--data-dir", str(store), *options]
    service = Service(name, command, folder / "slotmq.log", {"PYTHONPATH": str(package.resolve()), **settings})
    with service:
        service.command = [*command, "--port", "0"]
        if tenants:
            folder.mkdir(parents=True, exist_ok=True)
            service.command += ["--load-definitions", str(write_definitions(folder / "definitions.json"))]
        service.start()
        ready = service.await_line(_READY)
        host, port = ready[1].strip("[]"), int(ready[2])
        service.command = [*command, "--port", str(port)]  # after a restart its users come from the store
        address = Address(host, port)
        broker = Broker(
            name,
            address,
            service.processes,
            store,
            started=service,
            tls=certificate.address(address, tls_port) if certificate else None,
            idle_bytes=service.processes.usage().rss_bytes,
            mqtt=Address(host, mqtt_port) if mqtt else None,
        )
        yield with_tenants(broker) if tenants else broker


def run_slotmq(package: Path, *words: str, limit_s: float) -> str:
    """Run a `slotmq` command and return its output. Raises: RunFailed with the last line of the output."""
    what = f"slotmq {' '.join(words[:2])}"
    command, environment = [sys.executable, "-m", "broker", *words], {**os.environ, "PYTHONPATH": str(package)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{what} took longer than {limit_s:.0f} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise RunFailed(said[-1] if said else f"{what} ended with {done.returncode}")
    return done.stdout


@contextmanager
def mosquitto(folder: Path) -> Iterator[Broker]:
    """Run the installed Mosquitto on loopback, without passwords. Raises: BrokerFailed."""
    home, (port,) = folder / "mosquitto", _free_ports(1)
    home.mkdir(parents=True)
    (home / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {home}/\nuser root\n"
    )
    service = Service("Mosquitto", [which("mosquitto") or "", "-c", str(home / "mosquitto.conf")], home / "log", {})
    with service:
        service.start()
        address, version = Address("127.0.0.1", port), service.await_line(_MOSQUITTO_READY)[1]
        idle_bytes = service.processes.usage().rss_bytes
        yield Broker(
            "Mosquitto", address, service.processes, home, mqtt=address, version=version, idle_bytes=idle_bytes
        )


@contextmanager
def relay() -> Iterator[Broker]:
    """Run the bare relay, which shows the limit of the load generator itself. Raises: RunFailed."""
    with conductor.relay() as (address, pid):
        processes = ProcessTree(pid)
        yield Broker("relay", address, processes, relay=True, idle_bytes=processes.usage().rss_bytes)


def rabbitmq_script() -> str | None:
    """Return the installed rabbitmq-server script, None if there is none.

    Distributions wrap it to change the user and the folder; the wrapped script runs as any user.
    """
    for path in _RABBITMQ_SCRIPTS:
        if os.access(path, os.X_OK):
            return path
    return shutil.which("rabbitmq-server")


@contextmanager
def rabbitmq(
    folder: Path, script: str, *, tenants: bool = False, certificate: Certificate | None = None
) -> Iterator[Broker]:
    """Run RabbitMQ in its shipped configuration, without plugins, on loopback, with its own node name, cookie and epmd.
    A `certificate` adds a TLS port.

    Raises: BrokerFailed.
    """
    home = folder / "rabbitmq"
    (home / "log").mkdir(parents=True)
    *ports, tls_port = _free_ports(4)
    environment = _rabbitmq_environment(home, *ports)
    epmd = shutil.which("epmd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/lib/erlang/bin")
    if not epmd:
        raise BrokerFailed("rabbitmq-server is installed, but epmd is not on the path")
    mapper = Service(
        "epmd", [epmd, "-port", str(ports[0]), "-address", "127.0.0.1"], home / "log/epmd.log", environment
    )
    service = Service("RabbitMQ", [script], home / "log" / "started.log", environment)
    settings = home / "rabbitmq.conf"
    if certificate:
        with settings.open("a") as file:
            file.write(certificate.rabbitmq_lines(tls_port))
    kept = settings.read_text()
    with mapper, service:
        mapper.start()
        if tenants:
            settings.write_text(f"{kept}load_definitions = {write_definitions(home / 'definitions.json')}\n")
        service.start()
        address = Address("127.0.0.1", ports[1])
        service.await_handshake(tenant(address, VHOST) if tenants else address)
        settings.write_text(kept)
        broker = Broker(
            "RabbitMQ",
            address,
            service.processes,
            home / "mnesia",
            started=service,
            tls=certificate.address(address, tls_port) if certificate else None,
            idle_bytes=service.processes.usage().rss_bytes,
        )
        yield with_tenants(broker) if tenants else broker


def _rabbitmq_environment(home: Path, epmd_port: int, port: int, distribution_port: int) -> dict[str, str]:
    plugins = home / "enabled_plugins"
    plugins.write_text("[].\n")
    settings = home / "rabbitmq.conf"
    settings.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    environment_file = home / "rabbitmq-env.conf"
    environment_file.write_text("")
    arguments = "-kernel inet_dist_use_interface {127,0,0,1}"
    return {
        "HOME": str(home),  # the folder in which Erlang keeps the cookie
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
        "RABBITMQ_CONF_ENV_FILE": str(environment_file),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": arguments,
    }


def _free_ports(count: int) -> list[int]:
    """Return different free ports: every socket stays bound until the last port is known."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
