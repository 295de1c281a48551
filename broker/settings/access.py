"""The settings of users, logins, TLS and HTTP."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import SecretStr, model_validator

from broker.settings.fields import (
    AT_ONCE,
    NEXT_CONNECTION,
    GiB,
    KiB,
    MiB,
    Milliseconds,
    SettingsSection,
    Size,
    number,
    setting,
    text,
)


class Auth(SettingsSection):
    """Users, passwords and logins."""

    users: dict[str, SecretStr] = {}
    """Names and passwords of administrators with all permissions in every vhost. Commands cannot change them; a user
    with an empty password cannot log in."""
    default_user: str = text("guest", most=255)
    """The administrator that the broker creates in a data folder without users; commands can change or delete it later.
    If `users` is set, it is created only if default_user or default_pass is set, too. RABBITMQ_DEFAULT_USER works as
    well."""
    default_pass: SecretStr = SecretStr("guest")
    """The first user's password. RABBITMQ_DEFAULT_PASS works too."""
    default_vhost: str = text("/", least=1, most=255)
    """The vhost of a new data folder, in which the first user has all permissions. RABBITMQ_DEFAULT_VHOST works too."""
    loopback_users: tuple[str, ...] = ("guest",)
    """Users that can log in only from this machine, whatever `host` is."""
    guest_anywhere: bool = False
    """Whether guest can log in from anywhere while there is no other user: for a container, where no client connects
    from the same machine. The container image sets it."""
    mechanisms: tuple[Literal["PLAIN", "AMQPLAIN", "EXTERNAL"], ...] = setting(
        ("PLAIN", "AMQPLAIN", "EXTERNAL"), min_length=1
    )
    """The login mechanisms. EXTERNAL is offered only over TLS with tls.verify = peer."""
    cert_login_from: Literal["distinguished_name", "common_name", "subject_alternative_name"] = "distinguished_name"
    """The field of a client's certificate that names the user for EXTERNAL."""
    cert_login_san_type: Literal["dns", "email", "uri", "ip", "other_name"] = "dns"
    """The type of the subject alternative name that names the user."""

    @model_validator(mode="after")
    def _first_user_is_whole(self) -> Self:
        """Refuse a first user without a password; guest has a default one."""
        if self.default_user not in ("", "guest") and "default_pass" not in self.model_fields_set:
            raise ValueError("default_user is set and default_pass is not")
        if self.begins_with_default_user and not self.default_pass.get_secret_value():
            raise ValueError("default_pass is empty: nobody could log in with it")
        return self

    @property
    def begins_with_default_user(self) -> bool:
        """Whether an empty data folder gets the first user: it is configured, or there is no other user."""
        configured = not {"default_user", "default_pass"}.isdisjoint(self.model_fields_set)
        return bool(self.default_user) and (configured or not self.users)


class Tls(SettingsSection):
    """The TLS listener, which needs a certificate. The broker rereads the files on SIGHUP and when they change."""

    port: int = number(5671, 0, 65535, "", "IANA amqps")
    """The AMQP port with TLS, on server.host; 0 takes a free port."""
    certfile: str = text(reload=NEXT_CONNECTION)
    """The broker's certificate with its chain, in PEM."""
    keyfile: str = text(reload=NEXT_CONNECTION)
    """The key of the certificate, in PEM; empty if certfile contains it."""
    key_password: SecretStr = setting(SecretStr(""), reload=NEXT_CONNECTION)
    """The password of an encrypted key."""
    cafile: str = text(reload=NEXT_CONNECTION)
    """The only authorities that are trusted to sign client certificates, in PEM."""
    verify: Literal["none", "peer"] = setting("none", reload=NEXT_CONNECTION)
    """Whether the broker asks clients for a certificate signed by these authorities."""
    fail_if_no_peer_cert: bool = setting(True, reload=NEXT_CONNECTION)
    """Whether a client without a certificate is refused when verify is peer."""
    min_version: Literal["1.2", "1.3"] = setting("1.2", reload=NEXT_CONNECTION)
    """The oldest TLS version that is accepted."""
    handshake_timeout_ms: Milliseconds = number(
        5_000, 100, 600_000, "ms", "RabbitMQ ssl_handshake_timeout", reload=NEXT_CONNECTION
    )
    """How long a client can take for the TLS handshake."""
    only: bool = False
    """Whether the broker listens only with TLS and does not open the plain port."""
    reload_interval_ms: Milliseconds = number(5_000, 100, 3_600_000, "ms", reload=AT_ONCE)
    """How often the broker checks the files for changes."""

    @property
    def is_on(self) -> bool:
        return bool(self.certfile)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Refuse settings that would have no effect without a certificate, and `verify` without authorities."""
        unused = self.model_fields_set - {"handshake_timeout_ms", "reload_interval_ms"}
        if not self.certfile and "certfile" in unused:  # as in the documented file with all keys uncommented
            unused = {key for key in unused if getattr(self, key) != type(self).model_fields[key].default}
        if not self.certfile and unused:
            raise ValueError("certfile is missing: without it there is no TLS")
        if self.verify == "peer" and not self.cafile:
            raise ValueError('verify = "peer" needs cafile: without it no client is trusted')
        return self


class HttpPort(SettingsSection):
    """A port for HTTP."""

    enabled: Literal["auto"] | bool = "auto"
    """Whether the broker listens on the port."""
    host: str = text()
    """The address to listen on; empty means server.host."""
    port: int
    tls: bool = False
    """Whether the port uses only TLS, with the certificate of [tls]."""

    @property
    def is_required(self) -> bool:
        """Whether the port is configured explicitly, so that the broker does not start without it."""
        configured = self.enabled is True or not {"host", "port", "tls"}.isdisjoint(self.model_fields_set)
        return configured and self.enabled is not False


class Http(HttpPort):
    """The HTTP API: RabbitMQ's management API and the web page, slots for remote readers, /healthz and /readyz."""

    enabled: Literal["auto"] | bool = "auto"
    """Whether the HTTP API runs. With auto, it runs if slotmq[manage] is installed and the port is free. With true, or
    if host, port or tls is set, the broker does not start without it."""
    port: int = number(15672, 0, 65535, "", "RabbitMQ management")
    """The port; 0 takes a free port, which the ready line names."""
    hosts: tuple[str, ...] = setting((), reload=AT_ONCE)
    """Names under which browsers on this machine reach the API, besides localhost and the name of the machine. Requests
    from this machine under other names are refused, because a page of another site could have made them."""
    header_max_bytes: Size = number(16 * KiB, KiB, MiB, "bytes", reload=NEXT_CONNECTION)
    """The longest request line with its headers."""
    body_max_bytes: Size = number(
        20_000_000, KiB, GiB, "bytes", "RabbitMQ management.http.max_body_size", reload=AT_ONCE
    )
    """The longest body of a request."""
    timeout_ms: Milliseconds = number(30_000, 100, 600_000, "ms", reload=NEXT_CONNECTION)
    """How long a client can take to send a request, and to receive a piece of an answer."""
    connections_max: int = number(200, 1, 10_000, "connections", reload=AT_ONCE)
    """How many requests of users each port answers at the same time, and how many other connections it keeps open."""
    session_ms: Milliseconds = number(
        28_800_000, 1000, 2_592_000_000, "ms", "RabbitMQ management.login_session_timeout", reload=AT_ONCE
    )
    """How long a login at the web page lasts."""
    session_idle_ms: Milliseconds = number(3_600_000, 1000, 2_592_000_000, "ms", reload=AT_ONCE)
    """How long a login at the web page lasts without a request."""
    streams_max: int = number(64, 0, 10_000, "streams", reload=AT_ONCE)
    """How many web pages can follow live numbers at the same time."""
    sample_interval_ms: Milliseconds = number(5000, 500, 60_000, "ms", "RabbitMQ collect_statistics_interval")
    """How often the broker's totals are sampled for rates and charts; the samples of an hour are kept."""


class Metrics(HttpPort):
    """The metrics for Prometheus, without a login; limits are those of [http]."""

    enabled: Literal["auto"] | bool = "auto"
    """Whether the port for metrics is open; auto and true mean the same as in [http]."""
    port: int = number(15692, 0, 65535, "", "RabbitMQ prometheus")
    """The port; 0 takes a free port, which the log names."""
    shared_ms: Milliseconds = number(1000, 0, 60_000, "ms", reload=AT_ONCE)
    """How long scrapes of the same metrics share one answer."""
