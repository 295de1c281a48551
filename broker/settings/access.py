"""The settings of users, passwords and listeners."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from broker.settings.fields import AT_ONCE, NEXT_CONNECTION, GiB, KiB, MiB, Milliseconds, SettingsSection, Size, number


class Auth(SettingsSection):
    """Users, passwords and logins."""

    users: dict[str, SecretStr] = Field(
        default={},
        description="Names and passwords of administrators with all permissions in every vhost. Commands cannot change "
        "them; an empty password never logs in.",
    )
    default_user: str = Field(
        default="guest",
        max_length=255,
        description="The administrator that the broker creates in a data folder without users; commands can change or "
        "delete it later. If `users` is set, it is created only if it is named here. RABBITMQ_DEFAULT_USER works too.",
    )
    default_pass: SecretStr = Field(
        default=SecretStr("guest"), description="The first user's password. RABBITMQ_DEFAULT_PASS works too."
    )
    default_vhost: str = Field(
        default="/",
        min_length=1,
        max_length=255,
        description="The vhost of a new data folder, in which the first user has all permissions. "
        "RABBITMQ_DEFAULT_VHOST works too.",
    )
    loopback_users: tuple[str, ...] = Field(
        default=("guest",), description="Users that can log in only from this machine, whatever `host` is."
    )
    guest_anywhere: bool = Field(
        default=False,
        description="Whether guest can log in from anywhere while there is no other user: for a container, where no "
        "client connects from the same machine. The container image sets it.",
    )
    mechanisms: tuple[Literal["PLAIN", "AMQPLAIN", "EXTERNAL"], ...] = Field(
        default=("PLAIN", "AMQPLAIN", "EXTERNAL"),
        min_length=1,
        description="The login mechanisms. EXTERNAL is offered only over TLS with tls.verify = peer.",
    )
    cert_login_from: Literal["distinguished_name", "common_name", "subject_alternative_name"] = Field(
        default="distinguished_name", description="Which field of a client's certificate names the user for EXTERNAL."
    )
    cert_login_san_type: Literal["dns", "email", "uri", "ip", "other_name"] = Field(
        default="dns", description="Which kind of subject alternative name names the user."
    )

    @model_validator(mode="after")
    def _first_user_is_whole(self) -> Self:
        """Refuse a first user without a password, or with a well-known one."""
        if self.default_user not in ("", "guest") and "default_pass" not in self.model_fields_set:
            raise ValueError("default_user is set and default_pass is not")
        if self.begins_with_default_user and not self.default_pass.get_secret_value():
            raise ValueError("default_pass is empty: nobody could log in with it")
        return self

    @property
    def begins_with_default_user(self) -> bool:
        """Whether an empty data folder gets the first user, because it is configured or no one else could log in."""
        asked = not {"default_user", "default_pass"}.isdisjoint(self.model_fields_set)
        return bool(self.default_user) and (asked or not self.users)


class Tls(SettingsSection):
    """The TLS listener, which needs a certificate. The broker reads the files again on SIGHUP and when they change."""

    port: int = number(5671, 0, 65535, "", "The AMQP port with TLS, on server.host; 0 takes a free port.", "IANA amqps")
    certfile: str = Field(
        default="",
        max_length=4096,
        description="The broker's certificate with its chain, in PEM.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    keyfile: str = Field(
        default="",
        max_length=4096,
        description="The key of the certificate, in PEM; empty if certfile contains it.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    key_password: SecretStr = Field(
        default=SecretStr(""),
        description="The password of an encrypted key.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    cafile: str = Field(
        default="",
        max_length=4096,
        description="The only authorities that are trusted to sign client certificates, in PEM.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    verify: Literal["none", "peer"] = Field(
        default="none",
        description="Whether the broker asks clients for a certificate signed by these authorities.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    fail_if_no_peer_cert: bool = Field(
        default=True,
        description="Whether a client without a certificate is refused when verify is peer.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    min_version: Literal["1.2", "1.3"] = Field(
        default="1.2",
        description="The oldest TLS version that is accepted.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    handshake_timeout_ms: Milliseconds = number(
        5_000,
        100,
        600_000,
        "ms",
        "How long a client can take for the TLS handshake.",
        "RabbitMQ ssl_handshake_timeout",
        reload=NEXT_CONNECTION,
    )
    only: bool = Field(
        default=False, description="Whether the broker listens only with TLS and does not open the plain port."
    )
    reload_interval_ms: Milliseconds = number(
        5_000, 100, 3_600_000, "ms", "How often the broker checks the files for changes.", reload=AT_ONCE
    )

    @property
    def is_on(self) -> bool:
        """Whether there is a TLS listener."""
        return bool(self.certfile)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Refuse keys that would be silently ignored: any that differ from their default."""
        alone = self.model_fields_set - {"handshake_timeout_ms", "reload_interval_ms"}
        if not self.certfile and "certfile" in alone:  # the documented file with all keys uncommented
            alone = {key for key in alone if getattr(self, key) != type(self).model_fields[key].default}
        if not self.certfile and alone:
            raise ValueError("certfile is missing: without it there is no TLS")
        if self.verify == "peer" and not self.cafile:
            raise ValueError('verify = "peer" needs cafile: nobody is trusted without')
        return self


class HttpPort(SettingsSection):
    """A port for HTTP."""

    enabled: Literal["auto"] | bool = Field(default="auto", description="Whether the broker listens on the port.")
    host: str = Field(default="", max_length=4096, description="The address to listen on; empty means server.host.")
    port: int
    tls: bool = Field(default=False, description="Whether the port uses only TLS, with the certificate of [tls].")

    @property
    def is_asked_for(self) -> bool:
        """Whether it is configured, so that the broker does not start without it."""
        asked = self.enabled is True or not {"host", "port", "tls"}.isdisjoint(self.model_fields_set)
        return asked and self.enabled is not False


class Http(HttpPort):
    """The HTTP API: RabbitMQ's management API and the web page, slots for remote readers, /healthz and /readyz."""

    enabled: Literal["auto"] | bool = Field(
        default="auto",
        description="Whether the HTTP API runs. With auto it runs if slotmq[manage] is installed and the port is free, "
        "else the broker warns and serves without; with true it does not start without.",
    )
    port: int = number(
        15672, 0, 65535, "", "The port; 0 takes a free port, which the ready line names.", "RabbitMQ management"
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Names under which browsers on this machine reach the API, besides localhost and the name of the "
        "machine. Other names are refused there, because a foreign page could use them.",
        json_schema_extra={"reload": AT_ONCE},
    )
    header_max_bytes: Size = number(
        16 * KiB, KiB, MiB, "bytes", "The longest request line with its headers.", reload=NEXT_CONNECTION
    )
    body_max_bytes: Size = number(
        20_000_000,
        KiB,
        GiB,
        "bytes",
        "The longest body of a request.",
        "RabbitMQ management.http.max_body_size",
        reload=AT_ONCE,
    )
    timeout_ms: Milliseconds = number(
        30_000,
        100,
        600_000,
        "ms",
        "How long a client can take to send a request, and to receive a piece of an answer.",
        reload=NEXT_CONNECTION,
    )
    connections_max: int = number(
        200,
        1,
        10_000,
        "connections",
        "How many requests of users each port answers at the same time, and how many other connections it holds.",
        reload=AT_ONCE,
    )
    session_ms: Milliseconds = number(
        28_800_000,
        1000,
        2_592_000_000,
        "ms",
        "How long a login at the web page lasts.",
        "RabbitMQ management.login_session_timeout",
        reload=AT_ONCE,
    )
    session_idle_ms: Milliseconds = number(
        3_600_000,
        1000,
        2_592_000_000,
        "ms",
        "How long a login at the web page lasts without a request.",
        reload=AT_ONCE,
    )
    streams_max: int = number(
        64, 0, 10_000, "streams", "How many web pages can follow live numbers at the same time.", reload=AT_ONCE
    )
    sample_interval_ms: Milliseconds = number(
        5000,
        500,
        60_000,
        "ms",
        "How often the broker's totals are sampled for rates and charts; the samples of an hour are kept.",
        "RabbitMQ collect_statistics_interval",
    )


class Metrics(HttpPort):
    """The metrics for Prometheus, without a login; limits are those of [http]."""

    enabled: Literal["auto"] | bool = Field(
        default="auto", description="Whether the port for metrics is open; auto and true mean the same as in [http]."
    )
    port: int = number(
        15692, 0, 65535, "", "The port; 0 takes a free port, which the log names.", "RabbitMQ prometheus"
    )
    shared_ms: Milliseconds = number(
        1000, 0, 60_000, "ms", "How long scrapes of the same metrics share one text.", reload=AT_ONCE
    )
