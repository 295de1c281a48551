"""Choose the broker to which a command connects: a data folder, or the URL of an HTTP API with its password."""

from __future__ import annotations

import getpass
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit, urlunsplit

from broker.cli.broker_folder import folder_of
from broker.cli.client_variables import CA_FILE_VARIABLE, LOGIN, URL_VARIABLE
from broker.cli.parser import BadUsage

if TYPE_CHECKING:
    import argparse

URL_LOGIN: Final = re.compile(r"//.*@", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A broker's HTTP API. Shapes: `url` may contain a login; with `insecure`, any certificate is accepted."""

    url: str
    ca_file: str | None = None
    insecure: bool = False

    @property
    def shown(self) -> str:
        """The URL without its login, and without slashes at its end."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].rstrip('/')}"


class Unanswered(Exception):
    """The command failed, usually because no broker answered or one refused it. The text is one line for the user."""


AnyBroker = str | os.PathLike[str] | BrokerUrl
"""A data folder, or an HTTP API."""


def broker_of(arguments: argparse.Namespace) -> AnyBroker:
    """Return the broker that flags, variables or the settings file choose. Flags override SLOTMQ_URL.

    Raises: SettingsError, BadUsage.
    """
    by_folder = arguments.data_dir is not None or arguments.config is not None
    url = arguments.url or (None if by_folder else os.environ.get(URL_VARIABLE))
    if not url:
        return folder_of(arguments)
    if by_folder:
        raise BadUsage("give either --url or a data folder")
    if not url.startswith(("http://", "https://")):
        raise BadUsage("--url takes an http:// or https:// URL, such as http://guest@localhost:15672")
    ca_file = arguments.cafile or os.environ.get(CA_FILE_VARIABLE)
    return BrokerUrl(with_password(url, LOGIN), ca_file, arguments.insecure)


def called(broker: AnyBroker) -> str:
    """Return the name of a broker for error texts."""
    return f"the broker at {broker.shown}" if isinstance(broker, BrokerUrl) else f"the broker on data folder {broker}"


def with_password(url: str, variable: str) -> str:
    """Return the URL with a password if it names a user, so that no password need be in the shell's history.

    The password comes from the URL, the variable, the file that the variable with the suffix _FILE names, or the
    terminal. Raises: BadUsage.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may contain the password
        raise BadUsage(f"not a valid URL: {URL_LOGIN.sub('//***@', url)}") from None
    if parts.username is None or parts.password is not None:
        return url
    secret = _password(variable, f"{parts.username}@{parts.hostname}")
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{quote(secret, safe='')}@{host}"))


def _password(variable: str, login: str) -> str:
    if variable in os.environ:
        return os.environ[variable]
    file = os.environ.get(f"{variable}_FILE")
    if file is not None:
        try:
            return Path(file).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BadUsage(f"{variable}_FILE: {file}: cannot be read: {error}") from None
    if not sys.stdin.isatty():
        raise BadUsage(f"no password for {login}: set {variable} or {variable}_FILE, or write it into the URL")
    try:
        return getpass.getpass(f"Password for {login}: ")
    except EOFError:
        raise BadUsage(f"no password for {login}") from None
