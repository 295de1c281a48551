"""The address, login and TLS options of a broker, parsed from an amqp:// or amqps:// URL."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

PORTS: Final = {"amqp": 5672, "amqps": 5671}
VERIFY: Final = {"verify_peer": True, "verify_none": False}
OPTIONS: Final = ("cacertfile", "certfile", "keyfile", "verify", "heartbeat")
SHOULD_BE: Final = "the url of the broker should be amqp://user:password@host:port/vhost"


class BadAddress(ValueError):
    """A URL is not the address of a broker; the text contains no password."""


@dataclass(frozen=True, slots=True)
class AmqpAddress:
    """A broker, a login and a vhost.

    Shapes: the URL of RabbitMQ's clients, `amqps://user:password@host:port/vhost?cacertfile=ca.pem&verify=verify_none`.
        The options certfile and keyfile name a client certificate and its key. The option heartbeat is ignored.
    """

    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool = False
    verify: bool = True
    cafile: str = ""
    certfile: str = ""
    keyfile: str = ""

    def __str__(self) -> str:
        """Return the address without the password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'amqps' if self.tls else 'amqp'}://{self.user}@{host}:{self.port}/{self.vhost.replace('/', '%2F')}"

    def __repr__(self) -> str:
        return f"AmqpAddress({str(self)!r})"

    @classmethod
    def parse(cls, url: str, should_be: str = SHOULD_BE) -> AmqpAddress:
        """Return the address in a URL; omitted parts have RabbitMQ's defaults.

        Raises: BadAddress, whose text begins with `should_be` if the whole URL is invalid.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
            (parts.hostname or "").encode("idna")  # as the resolver does
        except ValueError:  # its text may contain a part of the password
            raise BadAddress(f"{should_be}, with %2F for a slash in a name or password") from None
        if parts.scheme not in PORTS or not parts.hostname:
            raise BadAddress(should_be)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        unknown = options.keys() - OPTIONS
        if unknown:
            raise BadAddress(f"the url of the broker has an unknown option: {min(unknown)}")
        verify = options.get("verify", "verify_peer")
        if verify not in VERIFY:
            raise BadAddress(f"verify in the url of the broker should be verify_peer or verify_none, not {verify!r}")
        return cls(
            host=parts.hostname,
            port=port or PORTS[parts.scheme],
            user=unquote(parts.username or "guest"),
            password=unquote("guest" if parts.password is None else parts.password),
            vhost=unquote(parts.path[1:]) or "/",
            tls=parts.scheme == "amqps",
            verify=VERIFY[verify],
            cafile=options.get("cacertfile", ""),
            certfile=options.get("certfile", ""),
            keyfile=options.get("keyfile", ""),
        )

    @property
    def login(self) -> tuple[str, str]:
        return self.user, self.password

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None without TLS. *Blocking.* Raises: OSError if a certificate cannot be read."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.cafile or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certfile:
            context.load_cert_chain(self.certfile, self.keyfile or None)
        return context
