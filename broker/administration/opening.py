"""The start: restore vhosts, users and permissions, and apply the definitions that the settings name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.administration.administration import IMPORTING
from broker.administration.definitions_import import DefinitionsImport
from broker.administration.rehearsal import Rehearsal
from broker.core.auth.first_user import create_first_user
from broker.core.auth.users import User, user_of
from broker.core.definitions.document import Document, VhostEntry
from broker.core.definitions.json_text import read_json
from broker.core.definitions.reading import BadDefinitions, read_document
from broker.event_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.administration.administration import Administration
    from broker.settings import Settings
    from broker.store.data_folder import DataFolder
    from broker.store.definitions_file import DefinitionsFile

__all__ = ["configured_users", "open_all"]

_log = get_logger()

ADMINISTRATOR: Final = ("administrator",)
DEFAULT_FACTS: Final = {"description": "Default virtual host"}


def configured_users(settings: Settings) -> list[User]:
    """Return the users of the settings."""
    return [User(name, secret.get_secret_value(), ADMINISTRATOR) for name, secret in settings.auth.users.items()]


async def open_all(
    administration: Administration, rehearsal: Rehearsal, folder: DataFolder, file: DefinitionsFile, settings: Settings
) -> None:
    """Open the stored vhosts, or begin with the default vhost and user; then import the definitions of the settings.

    Raises: BadDefinitions, CorruptStore, StoreFailed; ValueError for a bad name in the settings.
    """
    named = _load(settings.server.load_definitions)
    found = file.read()
    if found is not None:
        _restore(administration, folder, read_document(found))
        if IMPORTING in found:
            await _finish(administration, rehearsal, found[IMPORTING])
    else:
        _begin(administration, folder, settings, has_users=bool(named and named.users))
        await administration.alone(lambda: None)
    down = sorted(administration.vhosts.offline)
    if named is not None and down:
        _log.error("definitions.not_loaded", path=settings.server.load_definitions, reason=f"vhosts are down: {down}")
    elif named is not None:
        try:
            await DefinitionsImport(named, administration, rehearsal, _tell).run()
        except (BadDefinitions, ValueError) as bad:
            raise BadDefinitions(f"{settings.server.load_definitions}: {bad}") from None


def _restore(administration: Administration, folder: DataFolder, document: Document) -> None:
    names = [vhost.name for vhost in document.vhosts]
    for name in folder.list_vhosts():
        if name not in names:  # its deletion was stored, and a crash came before its files were removed
            _log.info("vhost.removed", vhost=name)
            folder.remove_vhost(name)
    administration.vhosts.open_all(names)
    administration.take(document, [user_of(_stored(entry)) for entry in document.users])


async def _finish(administration: Administration, rehearsal: Rehearsal, importing: Any) -> None:
    """Finish an import that a crash interrupted; a vhost that is down postpones it."""
    if administration.vhosts.offline:
        administration.postpone_import(importing)
        _log.error("definitions.import_postponed", reason=f"vhosts are down: {sorted(administration.vhosts.offline)}")
        return
    try:
        await DefinitionsImport(read_document(importing), administration, rehearsal, _tell).run()
    except (BadDefinitions, ValueError) as bad:  # a client declared one of its names differently before the crash
        _log.error("definitions.import_abandoned", reason=str(bad))
        await administration.alone(lambda: None)


def _stored(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in ("name", "password_hash", "hashing_algorithm", "tags", "limits")}


def _begin(administration: Administration, folder: DataFolder, settings: Settings, *, has_users: bool) -> None:
    """Begin with the default vhost and user, and the vhosts of a folder without stored definitions."""
    auth = settings.auth
    administration.vhosts.open_all(dict.fromkeys([auth.default_vhost, *folder.list_vhosts()]))
    administration.take(Document(vhosts=(VhostEntry(auth.default_vhost, DEFAULT_FACTS),)), [])
    if auth.begins_with_default_user and not has_users:
        password = auth.default_pass.get_secret_value()
        create_first_user(
            administration.users, administration.permissions, auth.default_user, password, auth.default_vhost
        )


def _load(path: str) -> Document | None:
    """Return the document at a path, None for no path. *Blocking.* Raises: BadDefinitions."""
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


def _tell(progress: Mapping[str, Any]) -> None:
    _log.info("definitions.importing", **progress)
