"""The broker that a command talks to: by its data folder, or over its HTTP API on another machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cli.broker_folder import folder_of
from broker.cli.client_variables import CA_FILE_VARIABLE, LOGIN, URL_VARIABLE
from broker.cli.login_url import with_password
from broker.cli.parser import BadUsage

if TYPE_CHECKING:
    import argparse

__all__ = ["AnyBroker", "BrokerUrl", "broker_of", "called"]


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A broker's HTTP API. Shapes: `url` may have a login; an `insecure` client accepts any certificate."""

    url: str
    ca_file: str | None = None
    insecure: bool = False

    @property
    def shown(self) -> str:
        """The URL without its login."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].rstrip('/')}"


AnyBroker = str | os.PathLike[str] | BrokerUrl
"""A data folder, or the URL of an API."""


def broker_of(arguments: argparse.Namespace) -> AnyBroker:
    """Return the broker from the flags or the environment: a flag wins over a variable, and a URL over a folder.

    Raises: BadFile, BadUsage.
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
    """Return what error texts call a broker."""
    return f"the broker at {broker.shown}" if isinstance(broker, BrokerUrl) else f"the broker on data folder {broker}"
