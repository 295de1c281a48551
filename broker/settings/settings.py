"""The models of all settings.

`slotmq config example` generates `config/slotmq.toml` from these models. `cli/settings_layers.py` merges the settings
of the file, the environment and the flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic.fields import FieldInfo

from broker.routing.pattern import HIGHEST
from broker.settings.access import Auth, Http, HttpPort, Metrics, Tls
from broker.settings.cluster import Cluster
from broker.settings.fields import (
    AT_ONCE,
    NEXT_CONNECTION,
    GiB,
    KiB,
    MiB,
    Milliseconds,
    Seconds,
    SettingsSection,
    Size,
    number,
    setting,
    text,
)
from broker.settings.mqtt import Mqtt
from broker.settings.overlay import Overlay
from broker.settings.storage import Memory, Slots, Store, TapSettings
from broker.settings.zmq import Zmq

__all__ = ["PREFIX", "Settings", "SettingsSection", "limits", "sections"]

PREFIX: Final = "SLOTMQ_"


class Server(SettingsSection):
    """The broker's address and data folder."""

    host: str = text("127.0.0.1", least=1)
    """The address to listen on; 0.0.0.0 means every IPv4 address, :: every address."""
    port: int = number(5672, 0, 65535, "", "IANA amqp")
    """The AMQP port; 0 takes a free port, which the ready line names."""
    data_dir: Path = Path("data")
    """The data folder, created if missing; relative to the current folder."""

    @field_validator("data_dir", mode="before")
    @classmethod
    def _is_named(cls, value: Any) -> Any:
        """Refuse an empty path, usually from an unset variable, because it would mean the working folder."""
        if value == "":
            raise ValueError("should name a folder; the working folder is .")
        return value

    load_definitions: str = text()
    """A definitions file of RabbitMQ or SlotMQ (JSON) to import at each start before clients can connect, as a whole or
    not at all. A new data folder whose first definitions have users gets no default user."""
    control_socket: bool = True
    """Whether the command line can control the broker through a socket in the data folder."""
    connections_max: int = number(10_000, 1, 1_000_000, "connections", reload=AT_ONCE)
    """How many clients can be connected at the same time."""
    backlog: int = number(1024, 1, 65535, "connections", "listen(2)")
    """How many connections can wait to be accepted."""
    handshake_timeout_ms: Milliseconds = number(
        10_000, 100, 600_000, "ms", "RabbitMQ handshake_timeout", reload=NEXT_CONNECTION
    )
    """How long a client can take to open its connection."""
    drain_timeout_ms: Milliseconds = number(5_000, 0, 9_000, "ms", reload=AT_ONCE)
    """How long a stopping broker waits for clients to answer connection.close."""


class Amqp(SettingsSection):
    """The limits of AMQP clients: negotiated values, sizes and timeouts."""

    product: Literal["SlotMQ", "RabbitMQ"] = setting("SlotMQ", reload=NEXT_CONNECTION)
    """The product name sent to clients. With RabbitMQ, the version and platform are those of RabbitMQ 3.10, for clients
    that require them; kombu then sets the prefetch of whole channels."""
    frame_max_bytes: Size = number(
        131_072, 4096, 16 * MiB, "bytes", "AMQP 0-9-1 section 4.2.3, RabbitMQ frame_max", reload=NEXT_CONNECTION
    )
    """The largest frame; a client can negotiate a smaller one, down to frame_min_bytes."""
    initial_frame_max_bytes: Size = number(
        8192, 4096, MiB, "bytes", "RabbitMQ initial_frame_max", reload=NEXT_CONNECTION
    )
    """The largest frame before a connection is open, at most frame_max_bytes."""
    channel_max: int = number(2047, 1, 65535, "channels", "RabbitMQ channel_max", reload=NEXT_CONNECTION)
    """How many channels a connection can have."""
    heartbeat_s: Seconds = number(
        60, 0, 65535, "s", "AMQP 0-9-1 section 4.2.7, RabbitMQ heartbeat", reload=NEXT_CONNECTION
    )
    """The heartbeat that the broker offers; 0 is none. Two silent intervals end a connection."""
    max_message_size_bytes: Size = number(
        134_217_728, 1, 536_870_912, "bytes", "RabbitMQ max_message_size", reload=NEXT_CONNECTION
    )
    """The largest message body."""
    tx_max_bytes: Size = number(64 * MiB, 64 * KiB, GiB, "bytes", reload=NEXT_CONNECTION)
    """How much memory a transaction can use before it is committed."""
    frame_min_bytes: Size = number(4096, 4096, 131_072, "bytes", "AMQP 0-9-1 section 4.2.3", reload=NEXT_CONNECTION)
    """The smallest frame_max that a client can negotiate. RabbitMQ requires 8192 from 4.1 on; amqplib proposes 4096."""
    consumer_timeout_ms: Milliseconds = number(0, 0, 86_400_000, "ms", "RabbitMQ consumer_timeout", reload=AT_ONCE)
    """How long a delivery can stay unacked before its channel is closed; 0 means no limit."""
    keep_poisoned: bool = setting(False, reload=AT_ONCE)
    """Whether a message that exceeds the delivery limit of a queue without a dead letter exchange goes to the queue
    NAME.poisoned instead of being dropped. A policy with keep-poisoned overrides this for its queues."""
    table_depth_max: int = number(16, 1, 64, "levels", reload=NEXT_CONNECTION)
    """How deep tables and arrays can be nested."""
    table_entries_max: int = number(4096, 1, 1_000_000, "entries", reload=NEXT_CONNECTION)
    """How many entries the tables of a method can have."""


class Limits(SettingsSection):
    """The limits on objects. Beyond a limit, clients get RabbitMQ's error code and text."""

    vhosts_max: int = number(1000, 1, 100_000, "vhosts", "RabbitMQ vhost_max", reload=AT_ONCE)
    """How many vhosts the broker can have."""
    consumers_max: int = number(
        0, 0, 1_000_000, "consumers", "RabbitMQ consumer_max_per_channel", reload=NEXT_CONNECTION
    )
    """How many consumers a channel can have; 0 means no limit."""
    exchanges_max: int = number(100_000, 1, 10_000_000, "exchanges", reload=AT_ONCE)
    """How many exchanges a vhost can have."""
    queues_max: int = number(100_000, 1, 10_000_000, "queues", "RabbitMQ max-queues", reload=AT_ONCE)
    """How many queues a vhost can have."""
    bindings_max: int = number(10_000_000, 1, 1_000_000_000, "bindings", reload=AT_ONCE)
    """How many bindings a vhost can have."""
    producers_max: int = number(10_000, 1, 1_000_000, "producers")
    """How many producers of numbered messages a vhost remembers."""
    producer_max_bytes: Size = number(64 * MiB, MiB, 64 * GiB, "bytes")
    """How much memory the used numbers of a vhost's producers can take."""
    producer_expiry_ms: Milliseconds = number(604_800_000, 1000, 315_360_000_000, "ms")
    """How long the broker remembers producers and numbers that are not used."""
    transient_shared_queues: bool = setting(True, reload=AT_ONCE)
    """Whether clients can declare queues that are neither durable nor exclusive. Celery does; RabbitMQ refuses them
    from 4.3 on."""


class Routing(SettingsSection):
    """Limits of binding keys, the index of topic exchanges, and the sizes of the route caches."""

    hashes_max: int = number(2, 1, HIGHEST.hashes, "#", "CVE-2026-67419")
    """How many # a binding key can have in canonical form."""
    words_max: int = number(64, 1, HIGHEST.words, "words", "CVE-2026-67419")
    """How many words a binding key can have."""
    topic_index: Literal["auto", "bitmap", "trie", "dfa"] = "auto"
    """How topic exchanges find matching wildcard patterns. An exchange can choose its own with x-topic-index. auto uses
    a trie, and a bitmap for patterns that would slow it down."""
    cache_entries: int = number(65_536, 0, 10_000_000, "routes")
    """How many routes an exchange caches; 0 turns the cache off."""
    cache_bytes: Size = number(32 * MiB, 0, 4 * GiB, "bytes")
    """How much memory the cached routes of an exchange can take."""


class Flow(SettingsSection):
    """Budgets for input and output, and intervals of checks."""

    read_budget_bytes: Size = number(128 * KiB, 4 * KiB, 64 * MiB, "bytes")
    """How much input of all connections the broker handles before it delivers again. Octets of body frames of at least
    32 KiB count an eighth."""
    high_water_bytes: Size = number(256 * KiB, 16 * KiB, 64 * MiB, "bytes", reload=NEXT_CONNECTION)
    """Above this amount of unsent output a connection gets no more deliveries. Octets of bodies of at least 32 KiB
    count a quarter."""
    check_interval_ms: Milliseconds = number(250, 10, 60_000, "ms", reload=AT_ONCE)
    """How often the broker checks memory and disk for alarms."""
    slow_client_ms: Milliseconds = number(10_000, 0, 3_600_000, "ms", reload=AT_ONCE)
    """A client that does not read for this time is logged, in whole seconds; 0 turns that off."""


class Log(SettingsSection):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", reload=AT_ONCE)
    """The lowest level that is logged."""
    format: Literal["auto", "text", "json"] = setting("auto", reload=AT_ONCE)
    """Text or JSON lines; auto is text on a terminal and JSON elsewhere."""
    repeat_interval_ms: Milliseconds = number(10_000, 0, 3_600_000, "ms", reload=AT_ONCE)
    """A repeated warning is logged once in this time, with suppressed=n; 0 logs each."""


class Settings(BaseModel):
    """All settings. The constructor does not read the environment; `cli/settings_layers.py` does."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    server: Server = Server()
    amqp: Amqp = Amqp()
    auth: Auth = Auth()
    tls: Tls = Tls()
    http: Http = Http()
    metrics: Metrics = Metrics()
    limits: Limits = Limits()
    routing: Routing = Routing()
    slots: Slots = Slots()
    store: Store = Store()
    cluster: Cluster = Cluster()
    overlay: Overlay = Overlay()
    zmq: Zmq = Zmq()
    mqtt: Mqtt = Mqtt()
    taps: TapSettings = TapSettings()
    memory: Memory = Memory()
    flow: Flow = Flow()
    log: Log = Log()

    @model_validator(mode="after")
    def _can_listen(self) -> Self:
        """Refuse TLS without a certificate, and two listeners on one port."""
        for name, port in (("http", self.http), ("metrics", self.metrics)):
            if port.tls and not self.tls.is_on and port.enabled is not False:
                raise ValueError(f"{name}.tls needs tls.certfile")
        taken: dict[tuple[str, int], str] = {}
        for key, host, wanted, is_needed in self.ports():
            if wanted and is_needed and (other := taken.setdefault((host, wanted), key)) != key:
                raise ValueError(f"{key} and {other} are both {wanted}")
        return self

    @model_validator(mode="after")
    def _has_no_conflict(self) -> Self:
        """Refuse a cluster node with overlay brokers or ØMQ endpoints: streams need the broker's own log."""
        if self.cluster.is_on and self.overlay.is_on:
            raise ValueError("a node of a cluster cannot take part in an overlay: set cluster or overlay.node")
        if self.cluster.is_on and self.zmq.is_on:
            raise ValueError("a node of a cluster has no ØMQ endpoints: set cluster or zmq.publish and zmq.subscribe")
        return self

    @model_validator(mode="after")
    def _mapped_ports_listen(self) -> Self:
        """Refuse a vhost for a port that is neither a port of MQTT nor that of HTTP."""
        ports = (self.mqtt.port, self.mqtt.tls_port, self.http.port)
        for port in self.mqtt.port_to_vhost:
            if port not in ports:
                raise ValueError(f"mqtt.port_to_vhost names {port}, which is no port of MQTT or HTTP")
        return self

    def ports(self) -> Iterator[tuple[str, str, int, bool]]:
        """Yield for each listener its setting, host and port, and whether the broker needs it to start."""
        server, tls = self.server, self.tls
        if not tls.only:
            yield "server.port", server.host, server.port, True
        if tls.is_on:
            yield "tls.port", server.host, tls.port, True
        for key, wanted in self.mqtt.ports(plain=not tls.only, tls=tls.is_on).items():
            yield key, self.mqtt.host or server.host, wanted, True
        for name, port in (("http", self.http), ("metrics", self.metrics)):
            if port.enabled is not False:
                yield f"{name}.port", self.host_of(port), port.port, port.is_required

    def host_of(self, port: HttpPort) -> str:
        return port.host or self.server.host


def sections() -> Iterator[tuple[str, type[SettingsSection], Mapping[str, FieldInfo]]]:
    """Yield the name, model and fields of each section, in the order of the documented settings file."""
    for name, field in Settings.model_fields.items():
        model = field.annotation
        assert isinstance(model, type) and issubclass(model, SettingsSection), name
        yield name, model, model.model_fields


def limits(field: FieldInfo) -> tuple[Any, Any]:
    """Return the range of a numeric field."""
    low = next(part.ge for part in field.metadata if hasattr(part, "ge"))
    high = next(part.le for part in field.metadata if hasattr(part, "le"))
    return low, high
