"""Drain the queues of a source, several at a time, until all of them are empty."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from broker.amqp.lenient_methods import DeclareAny
from broker.client.address import AmqpAddress
from broker.core.definitions.json_text import read_json
from broker.migrate.drain import OWN_PREFIX, Drain, own_name
from broker.migrate.link import MethodRefused, MigrationFault, MigrationLink

LIMIT_S: Final = 60.0
PORTS: Final = {"http": 15672, "https": 15671}
PRODUCT: Final = "SlotMQ"


def fetch_definitions(url: str, ca_file: str | None = None) -> Mapping[str, Any]:
    """Return the definitions of a broker from its HTTP API. *Blocking.* Raises: MigrationFault."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
        host = parts.hostname or ""
        host.encode("idna")  # as the resolver does
    except ValueError:
        host = ""
    if not host or parts.scheme not in PORTS:
        raise MigrationFault("--from-api takes an http:// or https:// URL")
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    where = f"{host} port {port}"
    try:
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=ca_file)
            connection: HTTPConnection = HTTPSConnection(host, port, timeout=LIMIT_S, context=context)
        else:
            connection = HTTPConnection(host, port, timeout=LIMIT_S)
        try:
            path = f"{parts.path.rstrip('/').removesuffix('/api')}/api/definitions"
            connection.request("GET", path, headers={"Authorization": f"Basic {login}"})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
    except (OSError, HTTPException) as error:
        raise MigrationFault(f"the API at {where} cannot be reached: {error}") from None
    if answer.status != 200:
        hint = " (the user needs the tag administrator)" if answer.status in (401, 403) else ""
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
    """Return the queues of a definitions document, and separately its streams, which cannot be drained.

    Shapes: `vhost` selects one vhost, and None all; queues that do not name a vhost are in `default_vhost`.
    """
    queues: list[QueuePlace] = []
    streams: list[QueuePlace] = []
    rows = document.get("queues", [])
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            continue
        place = QueuePlace(str(row.get("vhost", default_vhost)), row["name"])
        if vhost not in (None, place.vhost) or place.queue.startswith(OWN_PREFIX):
            continue
        arguments = row.get("arguments")
        kind = arguments.get("x-queue-type") if isinstance(arguments, dict) else None
        (streams if "stream" in (kind, row.get("type")) else queues).append(place)
    return queues, streams


@dataclass(frozen=True, slots=True, order=True)
class QueuePlace:
    """A queue of a vhost."""

    vhost: str
    queue: str


class Migration:
    """Drain queues of a source into a target.

    Shapes: `waiting` is the number of messages to move in all, as of the last count; `problem` is the reason why a
        broker cannot be used, or empty; `report` is called after each step.
    """

    def __init__(
        self,
        source: AmqpAddress,
        target: AmqpAddress,
        places: Sequence[QueuePlace],
        *,
        jobs: int,
        beside_consumers: bool,
        report: Callable[[Migration], None],
    ) -> None:
        self.waiting = 0
        self.stopping = False
        self.problem = ""
        self._source = source
        self._target = target
        self._jobs = asyncio.Semaphore(jobs)
        self.drains = {
            place: Drain(
                replace(source, vhost=place.vhost),
                replace(target, vhost=place.vhost),
                place.queue,
                beside_consumers=beside_consumers,
                step_done=lambda _step: report(self),
                stop=lambda: self.stopping,
            )
            for place in places
        }

    @property
    def moved(self) -> int:
        return sum(drain.moved for drain in self.drains.values())

    def stop(self) -> None:
        """Stop each drain after its current batch."""
        self.stopping = True

    async def run(self) -> None:
        """Drain the queues until `stop`, or until all are empty; late publishes or dead letters may refill a queue."""
        try:
            await self._check_target()
            while not self.stopping and (counts := await self._count()):
                self.waiting = self.moved + sum(counts.values())
                async with asyncio.TaskGroup() as drains:
                    for drain in counts:
                        drains.create_task(self._drain(drain))
        except MigrationFault as fault:
            self.problem = str(fault)

    async def _check_target(self) -> None:
        target = await MigrationLink.open(self._target, "target")
        await target.close()
        if not target.product.startswith(PRODUCT):
            raise MigrationFault(f"the target is {target.product}: only SlotMQ drops messages that arrive twice")

    async def _count(self) -> Mapping[Drain, int]:
        """Count the messages of each queue that can be drained further and that has messages or a marker."""
        counts: dict[Drain, int] = {}
        for vhost in sorted({place.vhost for place in self.drains}):
            link = await MigrationLink.open(replace(self._source, vhost=vhost), "source")
            try:
                for place, drain in self.drains.items():
                    if place.vhost != vhost or drain.fault or drain.in_flight:
                        continue
                    try:
                        ready = (await link.call(DeclareAny(queue=place.queue, passive=True))).message_count
                    except MethodRefused as refused:
                        drain.fail(refused)
                        await link.reopen()
                        continue
                    if ready or await self._has_marker(link, place.queue):
                        counts[drain] = ready
                await link.close()
            finally:
                link.abort()
        return counts

    @staticmethod
    async def _has_marker(link: MigrationLink, queue: str) -> bool:
        try:
            await link.call(DeclareAny(queue=own_name(queue), passive=True))
        except MethodRefused:
            await link.reopen()
            return False
        return True

    async def _drain(self, drain: Drain) -> None:
        async with self._jobs:
            if self.stopping:
                return
            try:
                await drain.run()
            except MigrationFault as fault:
                drain.fail(fault)
