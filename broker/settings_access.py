"""The settings of who may come in, and by which doors: users, TLS, HTTP."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from broker.settings_fields import AT_ONCE, NEXT_CONNECTION, KiB, MiB, SettingsSection, number

__all__ = ["Auth", "Http", "Tls"]


class Auth(SettingsSection):
    """Who may connect."""

    users: dict[str, SecretStr] = Field(
        default={},
        description="Names and passwords of administrators with all rights in every vhost, whom no command changes; an "
        "empty password lets nobody in.",
    )
    default_user: str = Field(
        default="guest",
        max_length=255,
        description="The administrator that a data folder without users begins with; commands may change or delete it "
        "from then on. When `users` has some, there is none but the one that is named here. RABBITMQ_DEFAULT_USER is "
        "heard too.",
    )
    default_pass: SecretStr = Field(
        default=SecretStr("guest"), description="The first user's password. RABBITMQ_DEFAULT_PASS is heard too."
    )
    default_vhost: str = Field(
        default="/",
        min_length=1,
        max_length=255,
        description="The vhost that a data folder begins with, and in which the first user has all rights. "
        "RABBITMQ_DEFAULT_VHOST is heard too.",
    )
    loopback_users: tuple[str, ...] = Field(
        default=("guest",), description="Users that are let in from this machine only, whatever `host` is."
    )
    guest_anywhere: bool = Field(
        default=False,
        description="Whether guest is let in from anywhere for as long as there is no other user: for a container, "
        "where nobody comes from this machine. The image sets it.",
    )
    mechanisms: tuple[Literal["PLAIN", "AMQPLAIN", "EXTERNAL"], ...] = Field(
        default=("PLAIN", "AMQPLAIN", "EXTERNAL"),
        min_length=1,
        description="How clients may log in. EXTERNAL is offered over TLS only, where tls.verify is peer.",
    )
    cert_login_from: Literal["distinguished_name", "common_name", "subject_alternative_name"] = Field(
        default="distinguished_name", description="What of a client's certificate is the user's name for EXTERNAL."
    )
    cert_login_san_type: Literal["dns", "email", "uri", "ip", "other_name"] = Field(
        default="dns", description="Which kind of subject alternative name is the user's name."
    )

    @model_validator(mode="after")
    def _first_user_is_whole(self) -> Self:
        """Refuse a first user whose password everybody knows, or who has none."""
        if self.default_user not in ("", "guest") and "default_pass" not in self.model_fields_set:
            raise ValueError("default_user is set and default_pass is not")
        if self.begins_with_default_user and not self.default_pass.get_secret_value():
            raise ValueError("default_pass is empty: nobody could log in with it")
        return self

    @property
    def begins_with_default_user(self) -> bool:
        """Whether an empty data folder gets the first user: it was asked for, or nobody else could log in."""
        asked = not {"default_user", "default_pass"}.isdisjoint(self.model_fields_set)
        return bool(self.default_user) and (asked or not self.users)


class Tls(SettingsSection):
    """The listener for TLS, there when it has a certificate. The files are read anew on SIGHUP and when they change."""

    port: int = number(5671, 0, 65535, "", "The AMQP port with TLS, on server.host; 0 takes a free one.", "IANA amqps")
    certfile: str = Field(
        default="",
        max_length=4096,
        description="The broker's certificate and its chain, in PEM.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    keyfile: str = Field(
        default="",
        max_length=4096,
        description="Its key in PEM; empty when certfile has it too.",
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
        description="The authorities whose clients are trusted, in PEM, and no other.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    verify: Literal["none", "peer"] = Field(
        default="none",
        description="Whether clients are asked for a certificate of these authorities.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    fail_if_no_peer_cert: bool = Field(
        default=True,
        description="Whether a client without one is turned away, where clients are asked.",
        json_schema_extra={"reload": NEXT_CONNECTION},
    )
    min_version: Literal["1.2", "1.3"] = Field(
        default="1.2", description="The oldest TLS that is spoken.", json_schema_extra={"reload": NEXT_CONNECTION}
    )
    handshake_timeout_ms: int = number(
        5_000,
        100,
        600_000,
        "ms",
        "How long a client may take for the TLS handshake.",
        "RabbitMQ ssl_handshake_timeout",
        reload=NEXT_CONNECTION,
    )
    only: bool = Field(
        default=False, description="Whether clients come by TLS alone: the port without it is not opened then."
    )
    reload_interval_ms: int = number(
        5_000, 100, 3_600_000, "ms", "How often the files are looked at for a change.", reload=AT_ONCE
    )

    @property
    def is_on(self) -> bool:
        """Whether there is a TLS listener."""
        return bool(self.certfile)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Refuse what would silently be less than was asked for."""
        if not self.certfile and (self.keyfile or self.cafile or self.verify == "peer" or self.only):
            raise ValueError("certfile is missing: without it there is no TLS")
        if self.verify == "peer" and not self.cafile:
            raise ValueError('verify = "peer" needs cafile: nobody is trusted without')
        return self


class Http(SettingsSection):
    """The HTTP server: slots for remote readers, and /healthz and /readyz for whoever watches over the broker."""

    enabled: bool = Field(default=False, description="Whether it listens. The image sets it.")
    host: str = Field(
        default="", max_length=4096, description="The address to listen on; empty takes that of server.host."
    )
    port: int = number(
        15672, 0, 65535, "", "The port; 0 takes a free one, named by the ready line.", "RabbitMQ management"
    )
    tls: bool = Field(default=False, description="Whether it speaks TLS, with the certificate of [tls], and only that.")
    header_max_bytes: int = number(
        16 * KiB, KiB, MiB, "bytes", "The longest request line with its headers.", reload=NEXT_CONNECTION
    )
    body_max_bytes: int = number(
        64 * KiB, KiB, 64 * MiB, "bytes", "The longest body of a request.", reload=NEXT_CONNECTION
    )
    timeout_ms: int = number(
        30_000,
        100,
        600_000,
        "ms",
        "How long a client may take to send a request, and to take a piece of an answer.",
        reload=NEXT_CONNECTION,
    )
    connections_max: int = number(
        64, 1, 10_000, "connections", "How many clients are answered at a time.", reload=AT_ONCE
    )
