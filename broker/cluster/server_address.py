"""The servers of a database URL, and texts about them that never contain the password."""

from __future__ import annotations

import errno
import os
import re
import ssl
import urllib.parse
from typing import Final, NamedTuple

APPLICATION_NAME_BYTES_MAX: Final = 63  # PostgreSQL cuts longer names

# A password may contain characters that should have been quoted, such as @ and /: the login ends at the last @.
_LOGIN: Final = re.compile(r"(//[^:]*):(.*)@")
_OPTION: Final = re.compile(r"((?:^|&)(?:ssl)?password=)([^&]*)")


class ServerAddress(NamedTuple):
    """The URL of the database, and the name of the node. `first` is the URL of the server to try first."""

    url: str
    node: str
    schema: str = "slotmq"
    connect_timeout_s: float = 5.0
    first: str = ""

    @property
    def application_name(self) -> str:
        """The name under which PostgreSQL lists the connections of this node."""
        name = f"slotmq {self.node}" if self.schema == "slotmq" else f"slotmq {self.node} {self.schema}"
        return name.encode()[:APPLICATION_NAME_BYTES_MAX].decode(errors="ignore")

    @property
    def servers(self) -> list[ServerAddress]:
        """The servers of the URL in their order, but beginning with `first`."""
        parts = urllib.parse.urlsplit(self.url)
        login, at, hosts = parts.netloc.rpartition("@")
        if "," not in hosts:
            return [self]
        urls = [parts._replace(netloc=login + at + host).geturl() for host in hosts.split(",")]
        return [self._replace(url=url) for url in sorted(urls, key=lambda url: url != self.first)]

    @property
    def quoted_schema(self) -> str:
        """The schema, quoted for SQL."""
        return quoted(self.schema)

    @property
    def options(self) -> str:
        """The options of the URL, after its question mark."""
        return self.url.partition("?")[2]

    @property
    def shown(self) -> str:
        """The URL without its password."""
        head, question, options = self.url.partition("?")
        return re.sub(_LOGIN, r"\1@", head) + question + re.sub(_OPTION, r"\1***", options)

    def reason(self, error: BaseException) -> str:
        """Return the reason for an error on one line, with the URL as in `shown`.

        Other occurrences of the password stay: a gap in a well-known text would reveal it.
        """
        return one_line(error).replace(self.url, self.shown)


def quoted(*names: str) -> str:
    """Return names quoted for SQL, separated by commas."""
    return ", ".join(['"' + name.replace('"', '""') + '"' for name in names])


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    if isinstance(error, ssl.SSLError):  # its errno is an OpenSSL code, not one of the system's
        return " ".join(str(error.args[-1]).split())
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    text = " ".join(str(error).split())
    return text or ("no answer in time" if isinstance(error, TimeoutError) else "the connection was lost")
