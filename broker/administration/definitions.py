"""Broker-wide definitions: vhosts, users, permissions, policies and parameters, for reading and editing."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.administration.slices import done
from broker.core.auth.permissions import Permissions
from broker.core.auth.users import User, Users
from broker.core.definitions.document import Document, PolicyEntry
from broker.core.definitions.export import operator_policy, policy_row
from broker.core.policy.policy import Policies, Policy
from broker.core.vhost import Vhost
from broker.store.definitions_file import DefinitionsFile
from broker.store.files import Files

if TYPE_CHECKING:
    from broker.vhosts.vhosts import OfflineVhost

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
ParameterKey = tuple[str, str, str]  # vhost, component, name


class DefinitionsStore(Protocol):
    """The stored definitions, with a version that grows with each change; 0 while none were stored."""

    async def read(self) -> tuple[int, dict[str, Any] | None]:
        """Return the version and the definitions.

        Raises: CorruptFile, NewerFormat, StoreFailed; ValueError when they cannot be reached now.
        """

    async def write(self, definitions: Mapping[str, Any], expected: int) -> int | None:
        """Replace the definitions and return their version; None when the stored ones are not those of `expected`.

        Raises: TypeError or ValueError when nothing was stored, or it is not known; StoreFailed.
        """

    def dropped(self, vhost: Vhost, /) -> None:
        """Note that a vhost is deleted here; it still has its queues."""

    def applied(self, version: int) -> None:
        """Note that this broker follows a version."""

    async def settled(self, version: int) -> None:
        """Return when every broker that shares the definitions follows a version. Raises: ValueError."""

    async def swept(self, vhosts: Iterable[str], /) -> None:
        """Note that every broker has applied changed policies of some vhosts to all queues. Raises: ValueError."""


class LocalDefinitions:
    """The definitions of a standalone broker, in its definitions file."""

    def __init__(self, file: DefinitionsFile) -> None:
        self.file = file

    async def read(self) -> tuple[int, dict[str, Any] | None]:
        """Return 1 and the definitions of the file. *Blocking*, for the start."""
        found = self.file.read()
        return int(found is not None), found

    async def write(self, definitions: Mapping[str, Any], expected: int) -> int:
        """Replace the file."""
        await asyncio.to_thread(self.file.write, definitions)
        return expected + 1

    def dropped(self, vhost: Vhost) -> None:
        """Do nothing: the messages go with the vhost's files."""

    def applied(self, version: int) -> None:
        """Do nothing: no other broker waits for this one."""

    async def settled(self, version: int) -> None:
        """Return at once: there is no other broker."""

    async def swept(self, vhosts: Iterable[str]) -> None:
        """Do nothing: queues look at their rules themselves."""


def local_definitions(files: Files, folder: Path) -> LocalDefinitions:
    """Return the definitions in a data folder."""
    return LocalDefinitions(DefinitionsFile(files, folder))


class Definitions(ABC):
    """The definitions of a broker: those in force, or a draft of them."""

    def __init__(self, users: Users, permissions: Permissions) -> None:
        self._users = users
        self._permissions = permissions
        self.vhost_facts: dict[str, dict[str, Any]] = {}
        self.parameters: dict[ParameterKey, Any] = {}
        self.global_parameters: dict[str, Any] = {}
        self.importing: dict[str, Any] | None = None  # a document that is checked and partly applied

    @property
    def users(self) -> Users:
        """The users."""
        return self._users

    @property
    def permissions(self) -> Permissions:
        """The permissions of the users."""
        return self._permissions

    @property
    @abstractmethod
    def vhost_names(self) -> list[str]:
        """The names of all vhosts, in order."""

    @abstractmethod
    def policies(self, vhost: str) -> Policies:
        """Return the policies of a vhost. Raises: KeyError."""

    def vhost_limits(self, name: str) -> dict[str, int]:
        """Return the limits of a vhost."""
        return dict(self.parameters.get(limits_key(name)) or {})

    def vhost_fields(self, name: str) -> dict[str, Any]:
        """Return the entry of a vhost in the definitions."""
        fields = {"name": name, **self.vhost_facts.get(name, {})}
        limits = self.vhost_limits(name)
        return {**fields, "limits": limits or []} if limits or "limits" in fields else fields  # [] as in RabbitMQ

    def take_facts(self, vhost: str, facts: Mapping[str, Any]) -> None:
        """Keep the entry of a vhost."""
        self.vhost_facts[vhost] = dict(facts)

    def set_parameter(self, key: ParameterKey, value: Any) -> None:
        """Set a parameter of a vhost."""
        self.parameters[key] = value

    def drop_parameter(self, key: ParameterKey) -> None:
        """Remove a parameter of a vhost, if it is set."""
        self.parameters.pop(key, None)

    def document(self) -> dict[str, Any]:
        """Return everything as a definitions document. Cost: O(definitions)."""
        return done(self.documenting())

    def documenting(self) -> Generator[None, None, dict[str, Any]]:
        """Build `document` in steps of one user, right, vhost or policy."""
        names = self.vhost_names
        users: list[dict[str, Any]] = []
        for user in self._users.stored():
            users.append(user.to_json())
            yield
        permissions = yield from self._permissions.writing()
        topic_permissions = yield from self._permissions.topics.writing()
        policies: list[dict[str, Any]] = []
        vhosts: list[dict[str, Any]] = []
        for name in names:
            vhosts.append(self.vhost_fields(name))
            for policy in self.policies(name).list():
                policies.append(policy_row(name, policy))
                yield
            yield
        return {
            "users": users,
            "vhosts": vhosts,
            "permissions": permissions,
            "topic_permissions": topic_permissions,
            "policies": policies,
            "parameters": [
                *({"vhost": key[0], "component": key[1], "name": key[2], "value": value}
                  for key, value in sorted(self.parameters.items(), key=lambda item: item[0])),
                *(operator_policy(name, policy)
                  for name in names
                  for policy in self.policies(name).list(operator=True)),
            ],
            "global_parameters": [{"name": name, "value": value} for name, value in self.global_parameters.items()],
        }  # fmt: skip

    def keying(self) -> Generator[None, None, dict[Key, Any]]:
        """Return the rows of `document` by their keys, in steps of one row."""
        return (yield from keying_rows((yield from self.documenting())))

    def take(self, document: Document) -> None:
        """Apply all parts of a document except its users; its vhosts exist. Raises: ValueError."""
        done(self.taking(document))

    def taking(self, document: Document) -> Generator[None, None, None]:
        """Apply a document as `take` does, in steps of one entry."""
        for found in document.vhosts:
            yield
            self.take_facts(found.name, found.facts)
            if found.facts.get("limits"):
                self.set_parameter(limits_key(found.name), found.facts["limits"])
        for right in document.permissions:
            yield
            if not self.users.is_configured(right.user):  # these may do everything
                self.permissions.set(right.user, right.vhost, right.configure, right.write, right.read)
        for topic in document.topic_permissions:
            yield
            if not self.users.is_configured(topic.user):
                self.permissions.topics.set(topic.user, topic.vhost, topic.exchange, topic.write, topic.read)
        for vhost in dict.fromkeys(policy.vhost for policy in document.policies):
            ours = ((policy_of(found), found.operator) for found in document.policies if found.vhost == vhost)
            yield from self.policies(vhost).setting(ours)  # all at once, because each change sweeps all queues
        for parameter in document.parameters:
            yield
            self.set_parameter((parameter.vhost, parameter.component, parameter.name), parameter.value)
        self.global_parameters.update({one.name: one.value for one in document.global_parameters})


class Draft(Definitions):
    """A copy of the definitions for a change: edits do not affect those in force.

    A change is tried on a draft, stored, and only then applied. When another broker has stored a change meanwhile, it
    is tried again on a draft of the newer definitions.
    Raises: ValueError from each method that refuses a change.
    """

    def __init__(self, source: Definitions, offline: Mapping[str, OfflineVhost]) -> None:
        """Copy definitions; the users, when the change asks for them. Cost: O(definitions) references."""
        super().__init__(source.users, source.permissions)
        self._has_own_users = False
        self._policies = {name: source.policies(name).copy() for name in source.vhost_names}
        self._offline = offline
        self.vhost_facts = {name: dict(facts) for name, facts in source.vhost_facts.items()}
        self.parameters = dict(source.parameters)
        self.global_parameters = dict(source.global_parameters)
        self.importing = source.importing

    @property
    def users(self) -> Users:
        """The users, copied."""
        self._copy_users()
        return self._users

    @property
    def permissions(self) -> Permissions:
        """The permissions, copied with their users."""
        self._copy_users()
        return self._permissions

    def _copy_users(self) -> None:
        if not self._has_own_users:
            self._has_own_users = True
            self._users = self._users.copy()
            self._permissions = self._permissions.copy(self._users)

    def begin_import(self, document: dict[str, Any]) -> None:
        """Write down a document that is being applied: after a crash the next start finishes it."""
        self.importing = document

    def end_import(self) -> None:
        """Forget the document that was being applied."""
        self.importing = None

    @property
    def vhost_names(self) -> list[str]:
        """The names of all vhosts, in order."""
        return sorted(self._policies)

    def policies(self, vhost: str) -> Policies:
        """Return the policies of a vhost. Raises: KeyError."""
        return self._policies[vhost]

    def check_vhost(self, name: str) -> None:
        """Accept a vhost that exists and is not offline."""
        if name in self._offline:
            raise ValueError(f"Virtual host '{name}' is down: {self._offline[name].reason}")
        if name not in self._policies:
            raise ValueError(f"Virtual host '{name}' does not exist")

    def add_vhost(self, name: str, facts: Mapping[str, Any]) -> None:
        """Add a vhost."""
        self._policies[name] = Policies(lambda: None)
        self.take_facts(name, facts)

    def drop_vhost(self, name: str) -> None:
        """Remove a vhost with everything that belongs to it."""
        del self._policies[name]
        self.vhost_facts.pop(name, None)
        self.permissions.forget_vhost(name)
        for key in [key for key in self.parameters if key[0] == name]:
            self.drop_parameter(key)

    def taking_import(self, document: Document, users: Iterable[User]) -> Generator[None, None, None]:
        """Apply the broker-wide parts of a document that is imported, in steps of one entry."""
        for user in users:
            known = self.users.get(user.name)  # limits that the document does not name stay, as in RabbitMQ
            limits = user.limits if known is None else known.limits.updated(user.limits.to_json())
            self.users.put(replace(user, limits=limits))
            yield
        yield from self.taking(document)

    def storing(self) -> Generator[None, None, dict[str, Any]]:
        """Return the stored form, in steps of one entry: the document, and the running import."""
        document = yield from self.documenting()
        return document if self.importing is None else {**document, IMPORTING: self.importing}


def limits_key(vhost: str) -> ParameterKey:
    """Return the key of the parameter that holds a vhost's limits. Source: RabbitMQ, rabbit_vhost_limit."""
    return vhost, VHOST_LIMITS, "limits"


def event_fields(limits: Mapping[str, int]) -> dict[str, int]:
    """Return limits as the fields of a log event."""
    return {name.replace("-", "_"): value for name, value in limits.items()}


def policy_of(entry: PolicyEntry) -> Policy:
    """Return the policy of a document's entry."""
    return Policy(entry.name, entry.pattern, entry.apply_to, entry.definition, entry.priority)


def keying_rows(document: Mapping[str, Any]) -> Generator[None, None, dict[Key, Any]]:
    """Return the rows of stored definitions by their keys, in steps of one row."""
    rows: dict[Key, Any] = {}
    for part, names in IDENTITIES.items():
        for row in document.get(part, ()):
            rows[part, *(str(row.get(name, "")) for name in names)] = row
            yield
    return rows


def same_row(one: Any, other: Any) -> bool:
    """Return whether two rows are the same in JSON, where 1 is neither true nor 1.0.

    Most rows are written identically, which is cheaper to check.
    """
    if one != other:
        return False
    return repr(one) == repr(other) or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
