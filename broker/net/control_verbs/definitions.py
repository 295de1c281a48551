"""Imports and exports definitions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from broker import __version__
from broker.administration.definitions_import import TOPOLOGY, DefinitionsImport
from broker.administration.policy_changes import PolicyChanges
from broker.core.definitions.export import topology_of, user_fields
from broker.core.definitions.reading import read_document
from broker.net.control_request import ControlRefused, Request, Verb
from broker.net.control_verbs.listing import gather

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.administration.administration import Administration
    from broker.administration.rehearsal import Rehearsal
    from broker.core.vhost import Vhost

__all__ = ["definitions_verbs"]


def definitions_verbs(administration: Administration, rehearsal: Rehearsal) -> dict[str, Verb]:
    """Return the verbs."""

    async def import_(request: Request) -> dict[str, Any]:
        vhost = request.optional("vhost")
        if vhost is not None and vhost not in administration.vhosts:
            raise ControlRefused(f"no vhost '{vhost}'")
        document = await asyncio.to_thread(read_document, request.table("definitions"), vhost)  # it may be long
        taking = DefinitionsImport(
            document, administration, rehearsal, request.asker.tell, skip_refused=request.flag("skip_refused")
        )
        imported = await taking.run()
        await PolicyChanges(administration).applied(request.asker.tell)
        return {"imported": imported, **taking.outcome(), "skipped": taking.skipped}

    async def export(request: Request) -> dict[str, Any]:
        name = request.optional("vhost")
        whole = administration.document()
        whole["users"] = [user_fields(user) for user in whole["users"]]
        if name is None:
            vhosts = [administration.vhosts[vhost] for vhost in sorted(administration.vhosts)]
            topology = await _topology(vhosts)
            return {"product_name": "SlotMQ", "product_version": __version__, **whole, **topology}
        if name not in administration.vhosts:
            raise ControlRefused(f"no vhost '{name}'")
        of_vhost = {part: [row for row in whole[part] if row["vhost"] == name] for part in ("policies", "parameters")}
        found = {**of_vhost, **await _topology([administration.vhosts[name]])}
        without = {part: [_without_vhost(row) for row in rows] for part, rows in found.items()}
        return {"product_name": "SlotMQ", "product_version": __version__, **without}

    return {"import_definitions": import_, "export_definitions": export}


async def _topology(vhosts: Iterable[Vhost]) -> dict[str, list[dict[str, Any]]]:
    parts = [topology_of(vhost) for vhost in vhosts]
    return {kind: await gather(row for part in parts for row in part[kind]) for kind in TOPOLOGY}


def _without_vhost(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "vhost"}
