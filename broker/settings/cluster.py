"""The settings of a broker that shares one PostgreSQL with other brokers."""

from __future__ import annotations

import re
from typing import Final, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import SecretStr, field_validator, model_validator

from broker.settings.fields import Milliseconds, SettingsSection, checked_name, number, text

SCHEMES: Final = ("postgresql", "postgres")
WANTED: Final = "should be postgresql://user:password@host:port/database"
SERVER: Final = re.compile(r"(\[[^]]*\]|[^]:[]*)(:\d{0,5})?")  # an address of IPv6 or a name, and a port
SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")  # an identifier that SQL accepts without quotes


class Cluster(SettingsSection):
    """The cluster that this broker is a node of: brokers that share one PostgreSQL. Without a URL it is standalone."""

    url: SecretStr = SecretStr("")
    """The database, as postgresql://user:password@host:port/database; empty means a standalone broker. Needs the extra
    slotmq[cluster]."""
    url_file: str = text()
    """A file that contains the URL, so that neither `ps` nor the environment shows it."""
    node: str = ""
    """The name of this node. A broker does not start under the name of another running node."""
    schema_name: str = "slotmq"
    """The schema of the cluster's tables, created at the first start. Clusters with different schemas can share a
    database."""
    lease_ms: Milliseconds = number(3000, 200, 60_000, "ms")
    """How long a node acts after its last answered heartbeat. The others take over from a silent node a little later.
    All nodes should have the same value."""

    @property
    def is_on(self) -> bool:
        return bool(self.url.get_secret_value() or self.url_file)

    @field_validator("url")
    @classmethod
    def _is_postgresql(cls, url: SecretStr) -> SecretStr:
        """Refuse a URL of another scheme. The error does not repeat the URL, which may contain a password."""
        value = url.get_secret_value()
        if value:
            try:
                parts = urlsplit(value)
                parse_qsl(parts.query, strict_parsing=parts.query != "")
            except ValueError:
                raise ValueError(f"not a URL: {WANTED}") from None
            if parts.scheme not in SCHEMES or not value.startswith(f"{parts.scheme}://"):
                raise ValueError(WANTED)
            if is_misread(parts):
                raise ValueError(f"not a URL: {WANTED}, with / ? # @ in the password as %2F %3F %23 %40")
            if not are_servers(parts):
                raise ValueError(f"each host should have a name, and each port be from 1 to 65535: {WANTED}")
        return url

    @field_validator("node")
    @classmethod
    def _is_node_name(cls, node: str) -> str:
        return checked_name(node) if node else node

    @field_validator("schema_name")
    @classmethod
    def _is_schema_name(cls, name: str) -> str:
        if SCHEMA.fullmatch(name) is None or name.startswith("pg_"):
            raise ValueError(
                "should be 1 to 63 lower-case letters, digits or underscores, no digit first, and no pg_ in front"
            )
        return name

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Refuse a node without a name, a name without a URL, and a URL in two places."""
        if self.url.get_secret_value() and self.url_file:
            raise ValueError("only one of url and url_file can be set")
        if self.is_on and not self.node:
            raise ValueError("node is missing: each node of a cluster needs a name of its own (--node NAME)")
        if self.node and not self.is_on:
            raise ValueError("node is set and neither url nor url_file is (--cluster URL)")
        return self


def is_misread(parts: SplitResult) -> bool:
    """Return whether the password seems to contain /, ?, # or @, so that the driver would read a part of it as a host.

    Its errors would quote that part.
    """
    if parts.netloc.count("@") > 1 or parts.fragment:
        return True
    login, _, hosts = parts.netloc.rpartition("@")
    is_cut = not login and ":" in parts.netloc and "@" in parts.path
    return is_cut or not all(SERVER.fullmatch(host) for host in hosts.split(","))


def are_servers(parts: SplitResult) -> bool:
    """Return whether each host in a URL or its query has a name, and each port is one; the driver does not check."""
    query = dict(parse_qsl(parts.query))
    listed = parts.netloc.rpartition("@")[2] or query.get("host", "")
    servers = [SERVER.fullmatch(host) for host in listed.split(",") if host[:1] != "/"] if listed else []
    if not all(server is not None and server[1] for server in servers):
        return False
    ports = [server[2][1:] for server in servers if server is not None and len(server[2] or "") > 1]
    if query.get("port"):
        ports += query["port"].split(",")
    return all(port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16 for port in ports)
