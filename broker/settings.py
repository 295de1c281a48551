"""Settings: every limit of the broker with its default, its range, its unit and where the number comes from.

`config/slotmq.toml` is written from these models (`slotmq config example`), so it cannot say anything else. The
layers (file, environment, flags) are laid over each other in cli/settings_layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from broker.settings_access import Auth, Http, Tls
from broker.settings_fields import AT_ONCE, NEXT_CONNECTION, GiB, KiB, MiB, SettingsSection, number, text
from broker.settings_storage import Memory, Slots, Store, TapSettings

__all__ = ["PREFIX", "Settings", "SettingsSection", "limits", "sections"]

PREFIX: Final = "SLOTMQ_"


class Server(SettingsSection):
    """Where the broker listens and where it keeps what it must not lose."""

    host: str = text("127.0.0.1", "The address to listen on; 0.0.0.0 is every IPv4 address, :: every address.")
    port: int = number(5672, 0, 65535, "", "The AMQP port; 0 takes a free one, named by the ready line.", "IANA amqp")
    data_dir: Path = Field(
        default=Path("data"), description="The data folder, made when missing; relative to the folder of start."
    )

    @field_validator("data_dir", mode="before")
    @classmethod
    def _is_named(cls, value: Any) -> Any:
        """Refuse an empty path, which would be the folder of start: the empty variable of some script."""
        if value == "":
            raise ValueError("should name a folder; the folder of start is .")
        return value

    load_definitions: str = Field(
        default="",
        max_length=4096,
        description="A definitions file of RabbitMQ or SlotMQ (JSON) that is taken at each start before anybody can "
        "connect, all of it or nothing. A folder that begins with its users has no default user.",
    )
    control_socket: bool = Field(
        default=True, description="Whether the command line can look into the broker, by a socket in the data folder."
    )
    connections_max: int = number(
        10_000, 1, 1_000_000, "connections", "How many clients may be connected at a time.", reload=AT_ONCE
    )
    backlog: int = number(1024, 1, 65535, "connections", "How many may wait to be accepted.", "listen(2)")
    handshake_timeout_ms: int = number(
        10_000,
        100,
        600_000,
        "ms",
        "How long a client may take to open its connection.",
        "RabbitMQ handshake_timeout",
        reload=NEXT_CONNECTION,
    )
    drain_timeout_ms: int = number(
        5_000,
        0,
        9_000,
        "ms",
        "How long a stopping broker waits for clients to answer connection.close.",
        reload=AT_ONCE,
    )


class Amqp(SettingsSection):
    """What is agreed with a client, and what it may send."""

    product: Literal["SlotMQ", "RabbitMQ"] = Field(
        default="SlotMQ",
        description="The product that clients are told; with RabbitMQ the version and platform of its 3.10 too, for "
        "clients that insist on the name. kombu then sets the prefetch of whole channels, as it does there.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    frame_max_bytes: int = number(
        131_072, 4096, 16 * MiB, "bytes", "The largest frame; a client may ask for less, down to 4096.",
        "AMQP 0-9-1 section 4.2.3, RabbitMQ frame_max", reload=NEXT_CONNECTION,
    )  # fmt: skip
    initial_frame_max_bytes: int = number(
        8192,
        4096,
        MiB,
        "bytes",
        "The largest frame before a connection is open; never above frame_max_bytes.",
        "RabbitMQ initial_frame_max",
        reload=NEXT_CONNECTION,
    )
    channel_max: int = number(
        2047, 1, 65535, "channels", "Channels of a connection.", "RabbitMQ channel_max", reload=NEXT_CONNECTION
    )
    heartbeat_s: int = number(
        60, 0, 65535, "s", "The heartbeat offered; 0 is none. Two silent intervals end a connection.",
        "AMQP 0-9-1 section 4.2.7, RabbitMQ heartbeat", reload=NEXT_CONNECTION,
    )  # fmt: skip
    max_message_size_bytes: int = number(
        134_217_728,
        1,
        536_870_912,
        "bytes",
        "The largest message body.",
        "RabbitMQ max_message_size",
        reload=NEXT_CONNECTION,
    )
    tx_max_bytes: int = number(
        64 * MiB,
        64 * KiB,
        GiB,
        "bytes",
        "What a transaction may hold in memory before it is committed.",
        reload=NEXT_CONNECTION,
    )
    frame_min_bytes: int = number(
        4096,
        4096,
        131_072,
        "bytes",
        "The smallest frame_max that a client may ask for; RabbitMQ wants 8192 from 4.1 on, which amqplib lacks.",
        "AMQP 0-9-1 section 4.2.3",
        reload=NEXT_CONNECTION,
    )
    consumer_timeout_ms: int = number(
        0,
        0,
        86_400_000,
        "ms",
        "How long a delivery may stay unacked before its channel is closed; 0 is for ever, because a task may be long.",
        "RabbitMQ consumer_timeout",
        reload=AT_ONCE,
    )
    table_depth_max: int = number(
        16, 1, 64, "levels", "How deep tables and arrays may be nested.", reload=NEXT_CONNECTION
    )
    table_entries_max: int = number(
        4096, 1, 1_000_000, "entries", "How many entries the tables of a method may have.", reload=NEXT_CONNECTION
    )


class Limits(SettingsSection):
    """How much of everything there may be. What is refused has RabbitMQ's code and text."""

    vhosts_max: int = number(
        1000, 1, 100_000, "vhosts", "How many vhosts the broker may have.", "RabbitMQ vhost_max", reload=AT_ONCE
    )
    consumers_max: int = number(
        0,
        0,
        1_000_000,
        "consumers",
        "Consumers of a channel; 0 is no limit.",
        "RabbitMQ consumer_max_per_channel",
        reload=NEXT_CONNECTION,
    )
    exchanges_max: int = number(
        100_000, 1, 10_000_000, "exchanges", "How many exchanges a vhost may have.", reload=AT_ONCE
    )
    queues_max: int = number(
        100_000, 1, 10_000_000, "queues", "How many queues a vhost may have.", "RabbitMQ max-queues", reload=AT_ONCE
    )
    bindings_max: int = number(
        10_000_000, 1, 1_000_000_000, "bindings", "How many bindings a vhost may have.", reload=AT_ONCE
    )
    producers_max: int = number(
        10_000, 1, 1_000_000, "producers", "How many producers that number their messages a vhost remembers."
    )
    producer_max_bytes: int = number(
        64 * MiB, MiB, 64 * GiB, "bytes", "Memory of the numbers that the producers of a vhost have used."
    )
    producer_expiry_ms: int = number(
        604_800_000, 1000, 315_360_000_000, "ms", "How long unused numbers and producers are remembered."
    )
    transient_shared_queues: bool = Field(
        default=True,
        description="Whether queues may be neither durable nor exclusive. Celery declares such; RabbitMQ refuses "
        "them from 4.3 on.",
        json_schema_extra={"reload": AT_ONCE},
    )


class Routing(SettingsSection):
    """Limits on binding keys, the index of topic exchanges, and the sizes of the route caches."""

    hashes_max: int = number(2, 1, 16, "#", "How many # a binding key may have in canonical form.", "CVE-2026-67419")
    words_max: int = number(64, 1, 128, "words", "How many words a binding key may have.", "CVE-2026-67419")
    topic_index: Literal["auto", "bitmap", "trie", "dfa"] = Field(
        default="auto",
        description="How topic exchanges find the wildcard patterns that match; an exchange may name its own in "
        "x-topic-index. auto is what serves best in the benchmark.",
    )
    cache_entries: int = number(65_536, 0, 10_000_000, "routes", "Routes that an exchange remembers; 0 is none.")
    cache_bytes: int = number(32 * MiB, 0, 4 * GiB, "bytes", "Memory of the routes that an exchange remembers.")


class Flow(SettingsSection):
    """How the broker shares itself among its clients."""

    read_budget_bytes: int = number(
        128 * KiB,
        4 * KiB,
        64 * MiB,
        "bytes",
        "How much input of all connections is handled before deliveries have their turn.",
    )
    high_water_bytes: int = number(
        256 * KiB,
        16 * KiB,
        64 * MiB,
        "bytes",
        "A connection with so much unsent output gets no more deliveries.",
        reload=NEXT_CONNECTION,
    )
    check_interval_ms: int = number(
        250, 10, 60_000, "ms", "How often memory and disk are looked at for alarms.", reload=AT_ONCE
    )


class Log(SettingsSection):
    """What the broker says on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least that is said.", json_schema_extra={"reload": AT_ONCE}
    )
    format: Literal["auto", "text", "json"] = Field(
        default="auto",
        description="Lines to read, or JSON; auto is text on a terminal and JSON elsewhere.",
        json_schema_extra={"reload": AT_ONCE},
    )
    repeat_interval_ms: int = number(
        10_000,
        0,
        3_600_000,
        "ms",
        "A warning that repeats is said once in this time, with suppressed=n; 0 says each.",
        reload=AT_ONCE,
    )


class Settings(BaseModel):
    """All settings. `Settings(server={"port": 0})` takes nothing from the environment; `load` does."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    server: Server = Server()
    amqp: Amqp = Amqp()
    auth: Auth = Auth()
    tls: Tls = Tls()
    http: Http = Http()
    limits: Limits = Limits()
    routing: Routing = Routing()
    slots: Slots = Slots()
    store: Store = Store()
    taps: TapSettings = TapSettings()
    memory: Memory = Memory()
    flow: Flow = Flow()
    log: Log = Log()

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        """Refuse one port for both listeners: the second could not listen."""
        if self.tls.is_on and self.tls.port and self.tls.port == self.server.port:
            raise ValueError(f"tls.port and server.port are both {self.tls.port}")
        return self

    @model_validator(mode="after")
    def _http_can_listen(self) -> Self:
        """Refuse what would only come out at the start, or silently without TLS."""
        if not self.http.enabled:
            return self
        if self.http.tls and not self.tls.is_on:
            raise ValueError("http.tls needs tls.certfile")
        others = {"server.port": self.server.port} if not self.tls.only else {}
        if self.tls.is_on:
            others["tls.port"] = self.tls.port
        for name, port in others.items():
            if port and port == self.http.port and self.http_host == self.server.host:
                raise ValueError(f"http.port and {name} are both {port}")
        return self

    @property
    def http_host(self) -> str:
        """The address of the HTTP server."""
        return self.http.host or self.server.host


def sections() -> Iterator[tuple[str, type[SettingsSection], Mapping[str, FieldInfo]]]:
    """Yield each section's name, model and fields, in the order of the file."""
    for name, field in Settings.model_fields.items():
        model = field.annotation
        assert isinstance(model, type) and issubclass(model, SettingsSection), name
        yield name, model, model.model_fields


def limits(field: FieldInfo) -> tuple[Any, Any]:
    """Return the least and the greatest value of a number."""
    low = next(part.ge for part in field.metadata if hasattr(part, "ge"))
    high = next(part.le for part in field.metadata if hasattr(part, "le"))
    return low, high
