"""Broker-wide definitions: vhosts, users, permissions, policies and parameters, for reading and editing."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from broker.core.auth.permissions import Permissions, patterns
from broker.core.auth.topic_permissions import compiled
from broker.core.auth.users import Users, user_of
from broker.core.definitions.document import Row
from broker.core.definitions.reading import NotWritten
from broker.core.policy.policy import OPERATOR_POLICY, Policies, Policy, operator_row
from broker.core.vhost_limits import vhost_limits_table
from broker.event_log import get_logger
from broker.store.damage import StoreFailed
from broker.store.definitions_file import DefinitionsFile
from broker.store.files import Files

VHOST_LIMITS: Final = "vhost-limits"  # the component of the parameters that limit vhosts
PAUSED_QUEUE: Final = "slotmq-paused-queue"  # the component of the parameters that pause queues
IMPORTING: Final = "importing"  # the key of an import that the next start has to finish

IDENTITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "users": ("name",),
    "vhosts": ("name",),
    "permissions": ("user", "vhost"),
    "topic_permissions": ("user", "vhost", "exchange"),
    "policies": ("vhost", "name"),
    "parameters": ("vhost", "component", "name"),
    "global_parameters": ("name",),
}
"""The fields that identify an entry, in a document and in the stored definitions."""

Key = tuple[str, ...]  # the part of the document, then the fields that identify the entry
Changes = Mapping[Key, Row | None]  # the new row of each changed entry, or None if it was removed
ParameterKey = tuple[str, str, str]  # vhost, component, name


_log = get_logger()


class DefinitionsStore(Protocol):
    """The stored definitions. Their version grows with each change; it is 0 while none are stored."""

    async def read(self) -> tuple[int, dict[str, Any] | None]:
        """Return the version and the definitions.

        Raises: CorruptFile, NewerFormat, StoreFailed; NotStored if the definitions cannot be reached now.
        """

    async def write(self, definitions: Mapping[str, Any], expected: int) -> int | None:
        """Replace the definitions and return their version, or None if the stored version is not `expected`.

        Raises: TypeError or ValueError if nothing was stored, or the outcome is unknown; StoreFailed.
        """

    async def settled(self, version: int, swept: Collection[str] = (), /) -> None:
        """Wait until every broker that shares the definitions has applied this version.

        Shapes: `swept` are the vhosts whose policies the version changes. Raises: NotStored.
        """


class LocalDefinitions:
    """The definitions of a standalone broker, in its definitions file."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._folder = folder
        self._file = DefinitionsFile(files, folder)
        self._refusal = ""  # the last logged reason; empty after a successful write

    async def read(self) -> tuple[int, dict[str, Any] | None]:
        """Return version 1 and the definitions of the file, or 0 and None if there is none. *Blocking*, at startup."""
        found = self._file.read()
        return int(found is not None), found

    async def write(self, definitions: Mapping[str, Any], expected: int) -> int:
        """Write the file and return the next version. Raises: NotWritten if nothing was changed; StoreFailed."""
        try:
            await asyncio.to_thread(self._file.write, definitions)
        except StoreFailed as failed:
            if failed.path == self._folder:  # the file was renamed, but perhaps not on disk
                raise
            if self._refusal != (reason := str(failed)):
                self._refusal = reason
                _log.error("definitions.not_written", reason=reason)
            raise NotWritten(f"nothing was changed: {reason}") from failed
        self._refusal = ""
        return expected + 1

    async def settled(self, version: int, swept: Collection[str] = ()) -> None:
        """Return at once: there is no other broker."""


class Definitions(ABC):
    """The definitions of a broker: those in force, or a draft.

    Shapes: `stored` is the last stored document, by part.
    """

    _users: Users
    _permissions: Permissions

    def __init__(self) -> None:
        self.stored: Mapping[str, Any] = {}
        self.vhost_facts: dict[str, dict[str, Any]] = {}
        self.parameters: dict[ParameterKey, Any] = {}
        self.global_parameters: dict[str, Any] = {}
        self.importing: dict[str, Any] | None = None  # the document of an import that is being applied

    @property
    def users(self) -> Users:
        return self._users

    @property
    def permissions(self) -> Permissions:
        return self._permissions

    @property
    def vhost_names(self) -> list[str]:
        """The sorted names of all vhosts."""
        return sorted(self.vhost_facts)

    @abstractmethod
    def policies(self, vhost: str) -> Policies:
        """Return the policies of a vhost; none if it is offline or does not exist."""

    def vhost_limits(self, name: str) -> dict[str, int]:
        return dict(self.parameters.get(limits_key(name)) or {})

    def vhost_fields(self, name: str) -> dict[str, Any]:
        fields = {"name": name, **self.vhost_facts.get(name, {})}
        limits = self.vhost_limits(name)
        return {**fields, "limits": limits or []} if limits or "limits" in fields else fields  # [] as in RabbitMQ

    def set_facts(self, vhost: str, facts: Mapping[str, Any]) -> None:
        self.vhost_facts[vhost] = dict(facts)

    def set_parameter(self, key: ParameterKey, value: Any) -> None:
        self.parameters[key] = value

    def drop_parameter(self, key: ParameterKey) -> None:
        self.parameters.pop(key, None)

    def put_row(self, key: Key, row: Row | None) -> None:
        """Set an entry; if `row` is None, remove it, except a vhost. Policies take effect with `Policies.changed`.

        Permissions of users defined in the settings are checked but have no effect. Raises: ValueError.
        """
        part, *names = key
        if part == "policies" or names[1:2] == [OPERATOR_POLICY]:
            policies, operator = self.policies(names[0]), part == "parameters"
            if row is None:
                policies.clear(names[-1], operator=operator, later=True)
            else:
                policies.set(Policy.of(names[-1], row["value"] if operator else row), operator=operator, later=True)
        elif part == "parameters":
            if row is None:
                self.drop_parameter((names[0], names[1], names[2]))
            else:
                self.set_parameter((names[0], names[1], names[2]), row["value"])
        elif part == "users":
            if row is None:
                self.users.delete(names[0])
            else:
                self.users.put(user_of(row))
        elif part in ("permissions", "topic_permissions"):
            rights = self.permissions if part == "permissions" else self.permissions.topics
            if self.users.is_configured(names[0]):
                _check_right(part, row)
            elif row is not None:
                rights.set(**row)
            elif names[0] in self.users:
                rights.clear(*names)
        elif part == "vhosts" and row is not None:
            self.set_facts(names[0], facts_of(row))
            if row.get("limits"):
                self.set_parameter(limits_key(names[0]), row["limits"])
        elif part == "global_parameters":
            self.global_parameters.pop(names[0], None)
            if row is not None:
                self.global_parameters[names[0]] = row["value"]

    def document(self) -> dict[str, list[Row]]:
        """Return the stored definitions as a document with new lists."""
        return {part: list(self.stored.get(part, ())) for part in IDENTITIES}


def _check_right(part: str, row: Row | None) -> None:
    """Check the patterns of a permission that has no effect. Raises: ValueError."""
    if row is not None and part == "permissions":
        patterns(row["configure"], row["write"], row["read"])
    elif row is not None:
        compiled(row["user"], row["vhost"], row["write"], row["read"])


class Draft(Definitions):
    """A copy of the definitions, whose changes do not affect those in force.

    Raises: ValueError from each method that refuses a change.
    Cost: O(vhosts + parameters); users, permissions and policies are copied and encoded only if an edit uses them.
    """

    def __init__(self, source: Definitions, offline: Mapping[str, str]) -> None:
        super().__init__()
        self._source = source
        self._offline = offline
        self._has_own_users = False
        self._has_own_vhosts = False  # whether vhosts or parameters were changed
        self._policies: dict[str, Policies] = {}
        self.stored = source.stored
        self.vhost_facts = dict(source.vhost_facts)
        self.parameters = dict(source.parameters)
        self.global_parameters = dict(source.global_parameters)
        self.importing = source.importing

    @property
    def users(self) -> Users:
        self._copy_users()
        return self._users

    @property
    def permissions(self) -> Permissions:
        self._copy_users()
        return self._permissions

    def _copy_users(self) -> None:
        if not self._has_own_users:
            self._has_own_users = True
            self._users = self._source.users.copy()
            self._permissions = self._source.permissions.copy(self._users)

    def begin_import(self, document: dict[str, Any]) -> None:
        """Record the document of an import, so that the next start finishes the import after a crash."""
        self.importing = document

    def end_import(self) -> None:
        self.importing = None

    def policies(self, vhost: str) -> Policies:
        if vhost not in self._policies:
            self._policies[vhost] = self._source.policies(vhost).copy()
        return self._policies[vhost]

    def check_vhost(self, name: str) -> None:
        """Check that a vhost exists and is online."""
        if name in self._offline:
            raise ValueError(f"Virtual host '{name}' is down: {self._offline[name]}")
        if name not in self.vhost_facts:
            raise ValueError(f"Virtual host '{name}' does not exist")

    def set_facts(self, vhost: str, facts: Mapping[str, Any]) -> None:
        self._has_own_vhosts = True
        super().set_facts(vhost, facts)

    def add_vhost(self, name: str, facts: Mapping[str, Any]) -> None:
        self._policies[name] = Policies()
        self.set_facts(name, facts)

    def drop_vhost(self, name: str) -> None:
        """Remove a vhost with its policies, permissions and parameters."""
        del self.vhost_facts[name]
        self._has_own_vhosts = True
        self._policies[name] = Policies()
        self.permissions.forget_vhost(name)
        for key in [key for key in self.parameters if key[0] == name]:
            self.drop_parameter(key)

    def set_parameter(self, key: ParameterKey, value: Any) -> None:
        """Set a parameter of a vhost. Raises: ValueError for invalid limits of a vhost."""
        if key[1] == VHOST_LIMITS:
            if key != limits_key(key[0]):
                raise ValueError(f"a parameter of {VHOST_LIMITS} is named 'limits'")
            vhost_limits_table(value)
        self._has_own_vhosts = True
        super().set_parameter(key, value)

    def drop_parameter(self, key: ParameterKey) -> None:
        self._has_own_vhosts = True
        super().drop_parameter(key)

    def put_entry(self, part: str, row: Row) -> None:
        """Set an entry of a document. As in RabbitMQ, a user keeps limits that the entry does not name."""
        known = self.users.get(row["name"]) if part == "users" else None
        if known is not None:
            row = {**row, "limits": {**known.limits.to_json(), **row["limits"]}}
        self.put_row(key_of(part, row), row)

    def storing(self) -> Generator[None, None, dict[str, Any]]:
        """Return the definitions to store, with an import in progress; each step handles one entry."""
        wanted = {**self.stored, IMPORTING: self.importing}
        if self.importing is None:
            del wanted[IMPORTING]
        if self._has_own_users:
            wanted["users"] = yield from self._users.writing()
            wanted["permissions"] = yield from self._permissions.writing()
            wanted["topic_permissions"] = yield from self._permissions.topics.writing()
            self._users.listeners.clear()  # breaks the reference cycle of users and permissions
        if self._has_own_vhosts:
            vhosts = wanted["vhosts"] = []
            for name in self.vhost_names:
                vhosts.append(self.vhost_fields(name))
                yield
        if self._policies:
            wanted["policies"] = yield from self._ranking(self.stored.get("policies", ()), operator=False)
        if self._policies or self._has_own_vhosts:
            operator = [row for row in self.stored.get("parameters", ()) if row["component"] == OPERATOR_POLICY]
            wanted["parameters"] = [
                {"vhost": key[0], "component": key[1], "name": key[2], "value": value}
                for key, value in sorted(self.parameters.items(), key=lambda item: item[0])
            ] + (yield from self._ranking(operator, operator=True))
        wanted["global_parameters"] = [{"name": name, "value": value} for name, value in self.global_parameters.items()]
        return wanted

    def _ranking(self, rows: Iterable[Row], *, operator: bool) -> Generator[None, None, list[Row]]:
        """Return the rows of all policies by vhost and rank; only those that this draft has copied are encoded."""
        found = [row for row in rows if row["vhost"] not in self._policies]
        for vhost, policies in self._policies.items():
            for policy in policies.list(operator=operator):
                row = policy.row(vhost)
                found.append(operator_row(row) if operator else row)
                yield
        return sorted(found, key=lambda row: str(row["vhost"]))


def facts_of(row: Row) -> Row:
    """Return the entry of a vhost without its name."""
    return {name: value for name, value in row.items() if name != "name"}


def limits_key(vhost: str) -> ParameterKey:
    """Return the key of the parameter with a vhost's limits. Source: RabbitMQ, rabbit_vhost_limit."""
    return vhost, VHOST_LIMITS, "limits"


def event_fields(limits: Mapping[str, int]) -> dict[str, int]:
    """Return limits as the fields of a log event."""
    return {name.replace("-", "_"): value for name, value in limits.items()}


def key_of(part: str, row: Row) -> Key:
    """Return the key of a row of a document."""
    return part, *[str(row.get(name, "")) for name in IDENTITIES[part]]


def keying_rows(document: Mapping[str, Any]) -> Generator[None, None, dict[Key, Row]]:
    """Return the rows of a document by their keys; each step handles one row."""
    rows: dict[Key, Row] = {}
    for part in IDENTITIES:
        for row in document.get(part, ()):
            rows[key_of(part, row)] = row
            yield
    return rows


def differing(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> Generator[None, None, Changes]:
    """Return the rows that `wanted` adds or changes, and None for those that it removes; each step handles one row."""
    rebuilt = {part: rows for part, rows in wanted.items() if rows is not known.get(part)}
    old = yield from keying_rows({part: known.get(part, ()) for part in rebuilt})
    changes: dict[Key, Row | None] = {}
    for key, row in (yield from keying_rows(rebuilt)).items():
        if not same_row(old.pop(key, None), row):
            changes[key] = row
        yield
    return {**dict.fromkeys(old), **changes}


def same_row(one: Any, other: Any) -> bool:
    """Return whether two rows are equal in JSON, where 1 is neither true nor 1.0."""
    if one != other:
        return False
    return repr(one) == repr(other) or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
