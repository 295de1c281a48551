"""`slotmq migrate`: import the definitions of another AMQP broker, and drain its queues."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from broker.cli.broker_url import URL_LOGIN, with_password
from broker.cli.client_variables import LOGIN_FROM, LOGIN_TO
from broker.cli.control_client import Unanswered, first_interrupt
from broker.cli.definitions import import_document, print_imported, read_document
from broker.cli.exit_codes import INTERRUPTED_CODE
from broker.cli.parser import BadUsage, add_command, add_list, add_switch, add_value, finish
from broker.cli.progress_line import ProgressLine, share_of
from broker.cli.table import cell, counted, print_json, warn

if TYPE_CHECKING:
    from broker.client.address import AmqpAddress
    from broker.migrate.drain import Drain
    from broker.migrate.migration import Migration, QueuePlace

JOBS: Final = 4
JOBS_MAX: Final = 64
SHOW_S: Final = 0.1
COUNTS: Final = ("moved", "returned", "doubtful", "in_flight")


def add_migrate(commands: Any) -> None:
    """Add the command."""
    command = add_command(
        commands, "migrate", "import the definitions and drain the queues of RabbitMQ or another AMQP 0-9-1 broker"
    )
    drained = "the broker to drain: amqp://user@host:5672/vhost, amqps:// for TLS; without a vhost all of them"
    add_value(command, "--from", "URL", drained, dest="source", required=True)
    target = "the SlotMQ broker that receives the messages; default %(default)s"
    add_value(command, "--to", "URL", target, dest="target", default="amqp://guest:guest@localhost:5672")
    add_value(command, "--definitions", "FILE", "import this file of `rabbitmqctl export_definitions`")
    add_value(command, "--from-api", "URL", "import the definitions of RabbitMQ's HTTP API: http://user@host:15672")
    add_switch(command, "--skip-refused", "skip definitions that are refused, and name them")
    add_list(command, "--queue", "NAME", "drain only this queue; can be repeated")
    add_switch(command, "--definitions-only", "import, and drain nothing")
    meaning = "drain queues that have consumers at the source too; the order of messages is lost"
    add_switch(command, "--beside-consumers", meaning)
    add_value(command, "--jobs", "N", f"drain N queues at a time (default {JOBS})", type=int, default=JOBS)
    add_switch(command, "--quiet", "show no progress")
    finish(command, _migrate, json=True)


def _migrate(arguments: argparse.Namespace) -> int:
    from broker.migrate.link import MigrationFault
    from broker.migrate.migration import QueuePlace, places_of

    if not 1 <= arguments.jobs <= JOBS_MAX:
        raise BadUsage(f"--jobs should be from 1 to {JOBS_MAX}")
    source, vhost = _address(arguments.source, "--from", LOGIN_FROM)
    target, _ = _address(arguments.target, "--to", LOGIN_TO)
    try:
        document = _definitions(arguments, source)
        places, streams = places_of(document or {}, vhost, source.vhost)
        if arguments.queue:
            places = [QueuePlace(source.vhost, name) for name in dict.fromkeys(arguments.queue)]
        elif document is None:
            raise BadUsage("AMQP cannot list queues: give --definitions, --from-api, or --queue NAME")
        imported = None if document is None else import_document(arguments, document, "the definitions")
        if imported is not None and not arguments.json:
            print_imported(imported)
        for stream in streams:
            warn(f"stream '{stream.queue}' is not drained: SlotMQ has no streams")
        if arguments.definitions_only:
            return 0
    except MigrationFault as fault:
        raise Unanswered(str(fault)) from None
    return _report(_run(source, target, places, arguments), imported, arguments)


def _address(url: str, flag: str, variable: str) -> tuple[AmqpAddress, str | None]:
    """Return the address of a URL, and its vhost if it names one. Raises: BadUsage."""
    from broker.client.address import AmqpAddress, BadAddress

    not_amqp = f"not an amqp:// or amqps:// URL: {URL_LOGIN.sub('//***@', url)}"
    try:
        address = AmqpAddress.parse(with_password(url, variable), not_amqp)
    except BadAddress as error:
        raise BadUsage(f"{flag}: {error}") from None
    return address, address.vhost if len(urlsplit(url).path) > 1 else None


def _definitions(arguments: argparse.Namespace, source: AmqpAddress) -> Mapping[str, Any] | None:
    from broker.migrate.migration import fetch_definitions

    if arguments.definitions and arguments.from_api:
        raise BadUsage("give either --definitions or --from-api")
    if arguments.from_api:
        return fetch_definitions(with_password(arguments.from_api, LOGIN_FROM), source.cafile or None)
    document = read_document(arguments.definitions) if arguments.definitions else None
    if document is not None and not isinstance(document, dict):
        raise BadUsage(f"{arguments.definitions}: not a definitions file")
    return document


def _run(
    source: AmqpAddress, target: AmqpAddress, places: Sequence[QueuePlace], arguments: argparse.Namespace
) -> Migration:
    """Run a migration, and return it when it has ended."""
    import asyncio

    from broker.migrate.migration import Migration

    shown_s = 0.0

    def show(migration: Migration) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s > SHOW_S:
            shown_s = now_s
            line.show(f"{share_of(migration.moved, max(migration.waiting, migration.moved))} messages moved")

    migration = Migration(
        source, target, places, jobs=arguments.jobs, beside_consumers=arguments.beside_consumers, report=show
    )
    with ProgressLine(quiet=arguments.quiet) as line, first_interrupt(migration.stop):
        asyncio.run(migration.run())
    return migration


def _report(migration: Migration, imported: Any, arguments: argparse.Namespace) -> int:
    drains, problem = sorted(migration.drains.items(), key=lambda item: item[0]), migration.problem
    if arguments.json:
        rows: list[dict[str, Any]] = [
            {"vhost": place.vhost, "queue": place.queue}
            | {name: getattr(drain, name) for name in COUNTS}
            | {"problem": drain.fault or None}
            for place, drain in drains
        ]
        print_json({"imported": imported, "queues": rows, "problem": problem or None, "stopped": migration.stopping})
    for place, drain in drains:
        name = f"queue '{cell(place.queue)}' in {cell(place.vhost)}"
        if drain.moved and not arguments.json:
            print(f"{name}: {counted(drain.moved, 'messages')} moved")
        for remark in _remarks(drain):
            warn(f"{name}: {remark}")
    if not arguments.json:
        print(f"{counted(migration.moved, 'messages')} moved")
    if problem:
        warn(problem)
    if migration.stopping:
        return INTERRUPTED_CODE
    return 1 if problem or any(drain.fault for _place, drain in drains) else 0


def _remarks(drain: Drain) -> Iterator[str]:
    """Yield remarks on a queue for the operator."""
    if drain.fault:
        yield drain.fault
    if drain.in_flight:
        yield f"{counted(drain.in_flight, 'messages')} may be in both brokers: run it again"
    if drain.doubtful:
        yield (
            f"{counted(drain.doubtful, 'messages')} may be duplicates, because the source lost acknowledgements: "
            "they have the header x-possibly-duplicate"
        )
