"""Definitions of the source: fetched from its management API, and the queues that they name."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from broker.core.definitions.json_text import read_json
from broker.migrate.faults import MigrationFault
from broker.migrate.migration import QueuePlace

__all__ = ["fetch_definitions", "places_of"]

LIMIT_S: Final = 60.0
PORTS: Final = {"http": 15672, "https": 15671}
OWN: Final = "slotmq-migrate."


def fetch_definitions(url: str, ca_file: str | None = None) -> Mapping[str, Any]:
    """Return the answer of GET /api/definitions. *Blocking.* Raises: MigrationFault."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise MigrationFault("--from-api takes an http:// or https:// URL")
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    where = f"{parts.hostname} port {parts.port or PORTS[parts.scheme]}"
    try:
        port = parts.port or PORTS[parts.scheme]
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=ca_file)
            connection: HTTPConnection = HTTPSConnection(parts.hostname, port, timeout=LIMIT_S, context=context)
        else:
            connection = HTTPConnection(parts.hostname, port, timeout=LIMIT_S)
        try:
            path = f"{parts.path.rstrip('/').removesuffix('/api')}/api/definitions"
            connection.request("GET", path, headers={"Authorization": f"Basic {login}"})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
    except (OSError, HTTPException) as error:
        raise MigrationFault(f"the API at {where} cannot be asked: {error}") from None
    if answer.status != 200:
        hint = " (it takes a user with the tag administrator)" if answer.status in (401, 403) else ""
        raise MigrationFault(f"the API at {where} answered {answer.status} {answer.reason}{hint}")
    try:
        document = read_json(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise MigrationFault(f"the API at {where} did not answer with definitions")
    return document


def places_of(
    document: Mapping[str, Any], vhost: str | None, default_vhost: str
) -> tuple[list[QueuePlace], Sequence[QueuePlace]]:
    """Return the queues of definitions, and the streams among them, which cannot be drained.

    Shapes: `vhost` is the only one to return, None for all; a single vhost's file belongs to `default_vhost`.
    """
    queues: list[QueuePlace] = []
    streams: list[QueuePlace] = []
    rows = document.get("queues", [])
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            continue
        place = QueuePlace(str(row.get("vhost", default_vhost)), row["name"])
        if vhost not in (None, place.vhost) or place.queue.startswith(OWN):
            continue
        arguments = row.get("arguments")
        kind = arguments.get("x-queue-type") if isinstance(arguments, dict) else None
        (streams if "stream" in (kind, row.get("type")) else queues).append(place)
    return queues, streams
