"""The broker-wide definitions: vhosts, users, permissions, policies and parameters, and how each of them changes.

A change is made in memory, then written and synced, then answered; one change at a time. The file is a definitions
document, so a start and an import read the same format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker.core.definitions.export import operator_policy, policy_fields
from broker.core.policy.policy import Policy
from broker.core.queue.default_type import default_type
from broker.core.vhost_limits import vhost_limits_table
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.core.auth.permissions import Permissions
    from broker.core.auth.users import User, Users
    from broker.core.definitions.document import Document, PolicyEntry
    from broker.core.vhost import Vhost
    from broker.settings import Settings
    from broker.store.definitions_file import DefinitionsFile
    from broker.vhosts.vhosts import Vhosts

__all__ = ["IMPORTING", "VHOST_LIMITS", "Administration", "event_fields", "policy_of"]

VHOST_LIMITS: Final = "vhost-limits"  # the component of the parameters that limit vhosts
IMPORTING: Final = "importing"  # the key of an import that the next start has to finish

_log = get_logger()


class Administration:
    """Keeps the definitions and carries out changes one at a time.

    Raises: ValueError from each change that is refused, in RabbitMQ's words where it has some; StoreFailed when a
        change cannot be written, which ends the broker.
    Invariant: a change that has begun is finished, even when its caller is cancelled.
    """

    def __init__(
        self,
        file: DefinitionsFile,
        vhosts: Vhosts,
        users: Users,
        permissions: Permissions,
        *,
        vhosts_max: int,
        close_connections: Callable[[Callable[[Any], bool], str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`close_connections` closes the connections whose session a predicate accepts, with a reason."""
        self.vhosts = vhosts
        self.users = users
        self.permissions = permissions
        self.vhosts_max = vhosts_max
        self.vhost_facts: dict[str, dict[str, Any]] = {}
        self.parameters: dict[tuple[str, str, str], Any] = {}
        self.global_parameters: dict[str, Any] = {}
        self.importing: dict[str, Any] | None = None  # a document that is checked and partly applied
        self._file = file
        self._close_connections = close_connections
        vhosts.close_with(self._close_of)
        self._fail = fail
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the broker is about to stop, so that long work has to end."""
        return self._closed

    def take_settings(self, settings: Settings) -> None:
        """Apply changed settings."""
        self.vhosts_max = settings.limits.vhosts_max

    # -- vhosts -------------------------------------------------------------------------------------------------------

    def vhost_limits(self, name: str) -> dict[str, int]:
        """Return the limits of a vhost."""
        return dict(self.parameters.get(_limits_key(name)) or {})

    def vhost_fields(self, name: str) -> dict[str, Any]:
        """Return the entry of a vhost in the definitions."""
        fields = {"name": name, **self.vhost_facts.get(name, {})}
        limits = self.vhost_limits(name)
        return {**fields, "limits": limits or []} if limits or "limits" in fields else fields  # [] as in RabbitMQ

    def vhost_named(self, name: str) -> Vhost:
        """Return a vhost. Raises: ValueError."""
        if self.vhosts.is_down(name):
            raise ValueError(f"Virtual host '{name}' is down: {self.vhosts.offline[name].reason}")
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise ValueError(f"Virtual host '{name}' does not exist")
        return vhost

    def drop_vhost(self, name: str) -> None:
        """Forget a vhost whose engine and files still exist."""
        if self.vhosts.offline.pop(name, None) is None:
            self._close_of(self.vhosts.hide(name), f"vhost '{name}' is deleted")
        self.permissions.forget_vhost(name)
        self.vhost_facts.pop(name, None)
        for key in [key for key in self.parameters if key[0] == name]:
            del self.parameters[key]

    async def remove_vhost(self, name: str) -> None:
        """End the engine of a dropped vhost and remove its files. Raises: StoreFailed, which ends the broker."""
        try:
            await self.vhosts.remove(name)
        except Exception as error:
            self._fail(error)
            raise

    def take_facts(self, vhost: str, facts: Mapping[str, Any]) -> None:
        """Keep the entry of a vhost in the definitions."""
        self.vhost_facts[vhost] = dict(facts)
        if vhost in self.vhosts:
            self.vhosts[vhost].set_default_queue_type(default_type(facts))

    def limit_vhost(self, name: str, table: Mapping[str, int] | None) -> None:
        """Set all limits of a vhost; None removes them."""
        if table is None:
            self.parameters.pop(_limits_key(name), None)
        else:
            self.parameters[_limits_key(name)] = table
        self._take_limits(name)

    def _close_of(self, vhost: Vhost, reason: str) -> None:
        self._close_connections(lambda session: session.vhost is vhost, reason)

    # -- changes --------------------------------------------------------------------------------------------------

    async def alone(
        self,
        work: Callable[[], Awaitable[None] | None],
        event: str = "",
        written: Callable[[], None] | None = None,
        /,
        **fields: Any,
    ) -> None:
        """Run some work while no other change runs, write the definitions, and log the event.

        `written` is called when they are on disk.
        """
        task = asyncio.get_running_loop().create_task(self._alone(work, event, written, fields))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def _alone(
        self,
        work: Callable[[], Awaitable[None] | None],
        event: str,
        written: Callable[[], None] | None,
        fields: Mapping[str, Any],
    ) -> None:
        async with self._lock:
            if self._closed:
                raise ValueError("the broker is stopping")
            pending = work()
            if pending is not None:
                await pending
            await self.save()
            if written is not None:
                written()
            if event:
                _log.info(event, **fields)

    async def close(self) -> None:
        """Refuse further changes, and return when the last one is written."""
        self._closed = True
        await asyncio.gather(*self._changes, return_exceptions=True)

    async def save(self) -> None:
        """Write the definitions as they are now, within a change. Raises: StoreFailed, which ends the broker."""
        written = self.document()
        if self.importing is not None:
            written[IMPORTING] = self.importing
        try:
            await asyncio.to_thread(self._file.write, written)
        except Exception as error:
            self._fail(error)
            raise

    async def begin_import(self, document: dict[str, Any]) -> None:
        """Write down that a document is being applied: after a crash the next start finishes it."""
        self.importing = document
        await self.save()

    def postpone_import(self, document: Any) -> None:
        """Keep a document that a crash interrupted for a later start."""
        self.importing = document

    def end_import(self) -> None:
        """Note that no document is being applied; the next save writes it."""
        self.importing = None

    def document(self) -> dict[str, Any]:
        """Return everything as a definitions document."""
        vhosts = self.vhosts
        names = sorted([*vhosts, *vhosts.offline])
        return {
            "users": self.users.to_json(),
            "vhosts": [self.vhost_fields(name) for name in names],
            "permissions": self.permissions.to_json(),
            "topic_permissions": self.permissions.topics.to_json(),
            "policies": [
                {"vhost": name, **policy_fields(policy)}
                for name in names
                for policy in vhosts.policies(name).list()
            ],
            "parameters": [
                *({"vhost": key[0], "component": key[1], "name": key[2], "value": value}
                  for key, value in sorted(self.parameters.items(), key=lambda item: item[0])),
                *({"vhost": name, **operator_policy(policy)}
                  for name in names
                  for policy in vhosts.policies(name).list(operator=True)),
            ],
            "global_parameters": [{"name": name, "value": value} for name, value in self.global_parameters.items()],
        }  # fmt: skip

    def take(self, document: Document, users: Iterable[User]) -> None:
        """Apply the broker-wide parts of a document; its vhosts exist or are offline. Raises: ValueError."""
        for user in users:
            known = self.users.get(user.name)  # limits that the document does not name stay, as in RabbitMQ
            limits = user.limits if known is None else known.limits.updated(user.limits.to_json())
            self.users.put(replace(user, limits=limits))
        for found in document.vhosts:
            self.take_facts(found.name, found.facts)
            if found.facts.get("limits"):
                self.parameters[_limits_key(found.name)] = found.facts["limits"]
        for right in document.permissions:
            if not self.users.is_configured(right.user):  # these may do everything
                self.permissions.set(right.user, right.vhost, right.configure, right.write, right.read)
        for topic in document.topic_permissions:
            if not self.users.is_configured(topic.user):
                self.permissions.topics.set(topic.user, topic.vhost, topic.exchange, topic.write, topic.read)
        for vhost in dict.fromkeys(policy.vhost for policy in document.policies):
            self._take_policies(vhost, document)
        self.parameters.update({(one.vhost, one.component, one.name): one.value for one in document.parameters})
        self.global_parameters.update({one.name: one.value for one in document.global_parameters})
        for name in self.vhosts:
            self._take_limits(name)

    def _take_limits(self, name: str) -> None:
        """Apply the parameter that limits a vhost. SlotMQ 0.1 did not check the value that it stored."""
        vhost = self.vhosts[name]
        try:
            table = vhost_limits_table(self.parameters.get(_limits_key(name)))
        except ValueError as bad:
            _log.warning("vhost.limits_ignored", vhost=name, reason=str(bad))
            del self.parameters[_limits_key(name)]
            table = {}
        vhost.limits.take_table(table)

    def _take_policies(self, vhost: str, document: Document) -> None:
        """Set all policies of a vhost at once, because each change sweeps all queues."""
        policies = self.vhosts.policies(vhost)
        ours = [found for found in document.policies if found.vhost == vhost]
        kept = {
            key: {policy.name: policy.to_json() for policy in policies.list(operator=operator)}
            | {found.name: policy_of(found).to_json() for found in ours if found.operator is operator}
            for key, operator in (("policies", False), ("operator_policies", True))
        }
        policies.from_json({key: list(by_name.values()) for key, by_name in kept.items()})


def _limits_key(vhost: str) -> tuple[str, str, str]:
    """Return the key of the parameter that holds a vhost's limits. Source: RabbitMQ, rabbit_vhost_limit."""
    return vhost, VHOST_LIMITS, "limits"


def event_fields(limits: Mapping[str, int]) -> dict[str, int]:
    """Return limits as the fields of a log event."""
    return {name.replace("-", "_"): value for name, value in limits.items()}


def policy_of(entry: PolicyEntry) -> Policy:
    """Return the policy of a document's entry."""
    return Policy(entry.name, entry.pattern, entry.apply_to, entry.definition, entry.priority)
