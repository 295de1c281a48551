"""Imports and exports of definitions, and backups of the data folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from broker import __version__
from broker.administration.definitions_import import DefinitionsImport
from broker.administration.slices import clear_in_slices, run_in_slices
from broker.administration.topology_entry import TOPOLOGY
from broker.core.definitions.export import topology_of, user_fields
from broker.core.definitions.reading import reading_document
from broker.core.vhost import Vhost
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.request import Asker, OfVhosts, OperationRefused, parameters


@parameters
class Backup:
    """The folder to create a backup in."""

    target: str


@parameters
class ImportDefinitions:
    """A document of the whole broker or of one vhost; `skip_refused` skips refused parts of its topology."""

    vhost: str | None = None
    definitions: dict[str, Any]
    skip_refused: bool = False


async def backup(broker: OperatedBroker, asked: Backup, asker: Asker) -> dict[str, Any]:
    """Copy the data folder while the broker runs."""
    target = Path(asked.target)
    if not target.is_absolute():
        raise OperationRefused("'target' should be an absolute path")

    def report(step: str, done: int, total: int) -> None:
        asker.write_progress({"step": step, "done": done, "total": total})

    await asker.send_progress({"step": "gathered vhosts", "done": 0, "total": 0})  # a disconnect now cancels the backup
    return await broker.backups.take(target, report)


async def import_definitions(broker: OperatedBroker, asked: ImportDefinitions, asker: Asker) -> dict[str, Any]:
    """Import a document as a whole or not at all, except for skipped entries, and empty its lists."""
    administration, vhost = broker.administration, asked.vhost
    _check_vhost(broker, vhost)
    importing = DefinitionsImport(
        await run_in_slices(reading_document(asked.definitions, vhost)),
        administration,
        broker.rehearsal,
        asker.write_progress,
        skip_refused=asked.skip_refused,
    )
    await clear_in_slices(*[rows for rows in asked.definitions.values() if isinstance(rows, list)])
    imported = await importing.run()
    await administration.swept(report=asker.write_progress)
    return {"imported": imported, **importing.outcome(), "skipped": importing.skipped}


async def export_definitions(broker: OperatedBroker, asked: OfVhosts, _asker: Asker) -> dict[str, Any]:
    """Return the definitions of the broker or a vhost; rows of exchanges, queues and bindings are generated lazily."""
    administration, name = broker.administration, asked.vhost
    _check_vhost(broker, name)
    whole = administration.document()
    whole["users"] = [user_fields(user) for user in whole["users"]]
    product = {"product_name": "SlotMQ", "product_version": __version__}
    if name is None:
        return {**product, **whole, **_topology(broker.vhosts(None))}
    of_vhost = {part: [row for row in whole[part] if row["vhost"] == name] for part in ("policies", "parameters")}
    found = {**of_vhost, **_topology([administration.vhosts[name]])}
    return {**product, **{part: map(_without_vhost, rows) for part, rows in found.items()}}


def _check_vhost(broker: OperatedBroker, name: str | None) -> None:
    if name is not None and name not in broker.administration.vhosts:
        raise OperationRefused(f"no vhost '{name}'")


def _topology(vhosts: Iterable[Vhost]) -> dict[str, Iterator[dict[str, Any]]]:
    parts = [topology_of(vhost) for vhost in vhosts]
    return {kind: chain.from_iterable([part[kind] for part in parts]) for kind in TOPOLOGY}


def _without_vhost(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "vhost"}


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "backup": Operation(
        backup,
        Backup,
        not_in_cluster="the messages and the topology of a cluster are in PostgreSQL: use slotmq cluster backup",
    ),
    "import_definitions": Operation(import_definitions, ImportDefinitions),
    "export_definitions": Operation(export_definitions, OfVhosts),
}
