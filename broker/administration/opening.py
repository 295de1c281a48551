"""Restore vhosts, users and permissions at startup, and import the definitions file that the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from broker.administration.administration import Administration
from broker.administration.definitions import DefinitionsStore, Draft
from broker.administration.definitions_import import CREATED, DefinitionsImport
from broker.administration.rehearsal import Rehearsal
from broker.core.auth.first_user import create_first_user
from broker.core.auth.users import User
from broker.core.definitions.document import Document
from broker.core.definitions.json_text import read_json
from broker.core.definitions.reading import BadDefinitions, NotStored, read_document
from broker.core.durable_topology import TopologySnapshot
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.settings import Settings
from broker.store.damage import note_missing
from broker.store.data_folder import DataFolder
from broker.store.definitions_file import NAME as DEFINITIONS
from broker.vhosts.recovery_watch import RecoveryWatch

_log = get_logger()

ADMINISTRATOR: Final = ("administrator",)
DEFAULT_FACTS: Final = {"description": "Default virtual host"}


def configured_users(settings: Settings) -> list[User]:
    """Return the users that the settings define, all of them administrators."""
    return [User(name, secret.get_secret_value(), ADMINISTRATOR) for name, secret in settings.auth.users.items()]


async def open_all(
    administration: Administration,
    rehearsal: Rehearsal,
    folder: DataFolder,
    store: DefinitionsStore,
    settings: Settings,
    watch: RecoveryWatch,
) -> None:
    """Open the stored vhosts, or create the default vhost and user; then import the definitions that the settings name.

    `watch` follows the recovery of the vhosts.
    Raises: BadDefinitions, NewerFormat, NotStored, StoreFailed; ValueError for a bad name in the settings.
    """
    named = _load(settings.server.load_definitions)
    version, found = await store.read()
    alone = not settings.cluster.is_on  # a cluster has its definitions in PostgreSQL and nothing durable here
    if found is not None:
        await _open_vhosts(administration, folder, [row["name"] for row in read_document(found).vhosts], watch)
        await administration.open(version, found)
    else:
        lost = alone and folder.has_begun
        if lost:
            _note_lost(folder, settings)
        await _begin(administration, folder, settings, watch, lost=lost, has_users=bool(named and named.users))
    if alone:
        folder.note_begun()
    if administration.importing is not None:
        await _finish(administration, rehearsal, administration.importing)
    down = sorted(administration.vhosts.offline)
    if named is not None and down:
        _log.error("definitions.not_loaded", path=settings.server.load_definitions, reason=f"vhosts are down: {down}")
    elif named is not None:
        try:
            await DefinitionsImport(named, administration, rehearsal, _report, at_start=True).run()
        except NotStored:
            raise
        except (BadDefinitions, ValueError) as bad:
            raise BadDefinitions(f"{settings.server.load_definitions}: {bad}") from None


async def _open_vhosts(
    administration: Administration, folder: DataFolder, names: list[str], watch: RecoveryWatch
) -> None:
    for name in folder.list_vhosts():
        if name not in names:  # a crash prevented the removal of a deleted vhost's files
            _log.info("vhost.removed", vhost=name)
            folder.remove_vhost(name)
    await administration.vhosts.open_all(names, watch, expected=True)


def _note_lost(folder: DataFolder, settings: Settings) -> None:
    """Refuse to start after a loss of definitions; with quarantine, log the loss. Raises: MissingData."""
    path = folder.path / DEFINITIONS
    note_missing(
        path, "with all users, permissions, policies and names of vhosts", quarantine=settings.store.quarantines
    )


async def _finish(administration: Administration, rehearsal: Rehearsal, importing: Mapping[str, Any]) -> None:
    """Finish an import that a crash interrupted, unless a vhost is down; abandon it if an entry is refused now."""
    if administration.vhosts.offline:
        _log.error("definitions.import_postponed", reason=f"vhosts are down: {sorted(administration.vhosts.offline)}")
        return
    try:
        document = read_document({part: rows for part, rows in importing.items() if part != CREATED})
        created = importing[CREATED]
        await DefinitionsImport(document, administration, rehearsal, _report, created=created, at_start=True).run()
    except NotStored:
        raise
    except (BadDefinitions, ValueError) as bad:  # for example, a client declared an object differently before the crash
        _log.error("definitions.import_abandoned", reason=str(bad))
        await administration.change(Draft.end_import)


async def _begin(
    administration: Administration,
    folder: DataFolder,
    settings: Settings,
    watch: RecoveryWatch,
    *,
    lost: bool,
    has_users: bool,
) -> None:
    """Create the default vhost and user, and the vhosts of a folder without stored definitions.

    If definitions were `lost`, no user is created. A vhost that was used proves a loss, because clients connect only
    after the definitions are written.
    """
    auth, vhosts = settings.auth, administration.vhosts
    await vhosts.open_all(dict.fromkeys([auth.default_vhost, *folder.list_vhosts()]), watch, expected=False)
    if not (lost or settings.cluster.is_on) and (vhosts.offline or any(map(_was_used, vhosts.values()))):
        lost = True
        _note_lost(folder, settings)

    def begin(draft: Draft) -> None:
        if administration.version:  # another broker has stored its definitions first
            return
        for name in (*vhosts, *vhosts.offline):
            draft.add_vhost(name, DEFAULT_FACTS if name == auth.default_vhost else {})
        if auth.begins_with_default_user and not has_users and not lost:
            password = auth.default_pass.get_secret_value()
            create_first_user(draft.users, draft.permissions, auth.default_user, password, auth.default_vhost)

    await administration.change(begin)


def _was_used(vhost: Vhost) -> bool:
    """Return whether a vhost has durable objects, or has assigned numbers to queues or producers."""
    return vhost.queues.next_number > 1 or any(TopologySnapshot(vhost))


def _load(path: str) -> Document | None:
    """Return the document at a path, or None if the path is empty. *Blocking.* Raises: BadDefinitions."""
    if not path:
        return None
    try:
        raw = read_json(Path(path).read_bytes())
    except OSError as error:
        raise BadDefinitions(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadDefinitions(f"{path}: not valid JSON: {error}") from None
    try:
        return read_document(raw)
    except BadDefinitions as bad:
        raise BadDefinitions(f"{path}: {bad}") from None


def _report(progress: Mapping[str, Any]) -> None:
    _log.info("definitions.importing", **progress)
