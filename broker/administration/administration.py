"""Changes of what belongs to the whole broker: vhosts, users, rights, policies, parameters.

Each change is made in memory, written down and synced before whoever asked hears of it, one after the other. The file
is a definitions document, so what is read at the start is what an import reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.core.auth.users import user_of
from broker.core.definitions.export import operator_policy, policy_fields
from broker.core.policy.policy import Policy
from broker.core.queue.default_type import default_type
from broker.core.vhost_limits import vhost_limits_table
from broker.event_log import get_logger
from broker.store.damage import StoreFailed

if TYPE_CHECKING:
    from broker.core.auth.permissions import Permissions
    from broker.core.auth.users import User, Users
    from broker.core.definitions.document import Document, PolicyEntry
    from broker.core.vhost import Vhost
    from broker.store.definitions_file import DefinitionsFile
    from broker.vhosts.vhosts import Vhosts

__all__ = ["IMPORTING", "VHOST_LIMITS", "Administration", "policy_of"]

VHOST_LIMITS: Final = "vhost-limits"  # the component of the parameters that limit vhosts
IMPORTING: Final = "importing"  # the key of what the next start has to finish

_log = get_logger()


class Administration:
    """Carries out changes one at a time.

    Raises: ValueError from each change that cannot be, with the reason in RabbitMQ's words where it has some;
        StoreFailed when it could not be written down, which ends the broker.
    Invariant: a change that was begun is finished, whatever becomes of whoever asked.
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
        """`close_connections` closes those whose session it is told to, with a reason."""
        self.vhosts = vhosts
        self.users = users
        self.permissions = permissions
        self.vhosts_max = vhosts_max
        self.vhost_facts: dict[str, dict[str, Any]] = {}
        self.parameters: dict[tuple[str, str, str], Any] = {}
        self.global_parameters: dict[str, Any] = {}
        self.importing: dict[str, Any] | None = None  # a document that is checked and half taken
        self._file = file
        self._close_connections = close_connections
        vhosts.close_connections = self._close_of
        self._fail = fail
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the broker is about to stop: what takes its time comes to an end."""
        return self._closed

    # -- vhosts -------------------------------------------------------------------------------------------------------

    async def add_vhost(self, name: str, facts: Mapping[str, Any]) -> None:
        """Add a vhost with an empty store; one that is as asked for was added already."""
        await self.alone(lambda: None if self._is_there(name, facts) else self.make_vhost(name, facts))

    def _is_there(self, name: str, facts: Mapping[str, Any]) -> bool:
        known = self.vhost_facts.get(name, {})
        return name in self.vhosts and all(not value or known.get(key) == value for key, value in facts.items())

    async def make_vhost(self, name: str, facts: Mapping[str, Any]) -> None:
        """Add a vhost, as a part of a change."""
        if self.vhosts.is_down(name):
            raise ValueError(f"Virtual host '{name}' is down: {self.vhosts.offline[name].reason}")
        if name in self.vhosts:
            raise ValueError(f"Virtual host '{name}' already exists, with another description or default queue type")
        self.check_new_vhosts([name])
        try:
            await self.vhosts.add(name)
        except StoreFailed as failed:  # nobody was promised anything yet, so the others need not suffer
            raise ValueError(f"cannot create vhost '{name}': {failed}") from failed
        self._take_facts(name, facts)
        _log.info("vhost.created", vhost=name)

    def check_new_vhosts(self, names: Iterable[str]) -> None:
        """Accept names for vhosts that are not there yet."""
        names = list(names)
        for name in names:
            if not self.vhosts.fits(name):
                raise ValueError(f"cannot create vhost '{name}': the name is empty or longer than 255 bytes")
        if names and len(self.vhosts) + len(names) > self.vhosts_max:
            raise ValueError(f"cannot create vhost '{names[-1]}': vhost limit of {self.vhosts_max} is reached")

    async def delete_vhost(self, name: str) -> None:
        """Delete a vhost: closes its connections, then its store, then remove its files."""
        await self.alone(lambda: self._delete_vhost(name))

    async def _delete_vhost(self, name: str) -> None:
        if not self.vhosts.is_down(name):
            self.vhost_named(name)
        self.drop_vhost(name)
        await self.save()  # before the files go: what is half deleted at a crash must not come back
        try:
            await self.vhosts.remove(name)
        except Exception as error:
            self._fail(error)
            raise
        _log.info("vhost.deleted", vhost=name)

    def drop_vhost(self, name: str) -> None:
        """Forget a vhost whose engine and files are still there."""
        if self.vhosts.offline.pop(name, None) is None:
            self._close_of(self.vhosts.hide(name), f"vhost '{name}' is deleted")
        self.permissions.forget_vhost(name)
        self.vhost_facts.pop(name, None)
        for key in [key for key in self.parameters if key[0] == name]:
            del self.parameters[key]

    def _close_of(self, vhost: Vhost, reason: str) -> None:
        self._close_connections(lambda session: session.vhost is vhost, reason)

    async def set_vhost_limits(self, name: str, changes: Mapping[str, int]) -> None:
        """Set some of a vhost's limits; the others stay. A negative one is none."""

        def change() -> None:
            self.vhost_named(name)
            self.parameters[_limits_key(name)] = {**self.vhost_limits(name), **changes}
            self._take_limits(name)

        await self.alone(change, "vhost.limits_set", vhost=name, **_event_fields(changes))

    async def clear_vhost_limits(self, name: str) -> None:
        """Take away a vhost's limits."""

        def change() -> None:
            self.vhost_named(name)
            self.parameters.pop(_limits_key(name), None)
            self._take_limits(name)

        await self.alone(change, "vhost.limits_cleared", vhost=name)

    def vhost_limits(self, name: str) -> dict[str, int]:
        """Return a vhost's own limits."""
        return dict(self.parameters.get(_limits_key(name)) or {})

    def vhost_fields(self, name: str) -> dict[str, Any]:
        """Return what definitions say of a vhost."""
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

    # -- users --------------------------------------------------------------------------------------------------------

    async def add_user(self, name: str, password: str, tags: Iterable[str]) -> None:
        """Add a user."""
        entry = {"name": name, "password": password, "tags": list(tags)}
        user = await asyncio.to_thread(user_of, entry)  # a hash is slow by intent

        def add() -> None:
            if name in self.users:
                raise ValueError(f"User '{name}' already exists")
            self.users.put(user)

        await self.alone(add, "user.added", user=name, tags=list(user.tags))

    async def set_user(self, name: str, password: str | None, tags: Iterable[str] | None) -> None:
        """Change a user's password or tags, or both."""

        def change() -> None:
            if tags is not None:
                self.users.set_tags(name, tags)
            if password is not None:
                self.users.set_password(name, password)

        changed = [fact for fact, value in (("tags", tags), ("password", password)) if value is not None]
        await self.alone(change, "user.changed", user=name, changed=changed)

    async def delete_user(self, name: str) -> None:
        """Delete a user with all rights."""
        await self.alone(lambda: self.users.delete(name), "user.deleted", user=name)

    async def set_user_limits(self, name: str, changes: Mapping[str, int]) -> None:
        """Set some of a user's limits; the others stay. A negative one is none."""
        work = partial(self.users.set_limits, name, changes)
        await self.alone(work, "user.limits_set", user=name, **_event_fields(changes))

    async def clear_user_limits(self, name: str) -> None:
        """Take away a user's limits."""
        await self.alone(partial(self.users.clear_limits, name), "user.limits_cleared", user=name)

    # -- rights -------------------------------------------------------------------------------------------------------

    async def set_permission(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Give a user rights in a vhost."""

        def change() -> None:
            self.vhost_named(vhost)
            self.permissions.set(user, vhost, configure, write, read)

        kinds = {"configure": configure, "write": write, "read": read}
        await self.alone(change, "permission.set", user=user, vhost=vhost, **kinds)

    async def clear_permission(self, user: str, vhost: str) -> None:
        """Take a user's rights in a vhost."""

        def change() -> None:
            self.vhost_named(vhost)
            self.permissions.clear(user, vhost)

        await self.alone(change, "permission.cleared", user=user, vhost=vhost)

    async def set_topic_permission(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Narrow a user's routing keys at a topic exchange."""

        def change() -> None:
            self.vhost_named(vhost)
            self.permissions.topics.set(user, vhost, exchange, write, read)

        named = {"user": user, "vhost": vhost, "exchange": exchange}
        await self.alone(change, "topic_permission.set", **named, write=write, read=read)

    async def clear_topic_permission(self, user: str, vhost: str, exchange: str | None) -> None:
        """Take back what was said about a user's routing keys."""

        def change() -> None:
            self.vhost_named(vhost)
            self.permissions.topics.clear(user, vhost, exchange)

        await self.alone(change, "topic_permission.cleared", user=user, vhost=vhost, exchange=exchange)

    # -- all at once --------------------------------------------------------------------------------------------------

    async def alone(
        self,
        work: Callable[[], Awaitable[None] | None],
        event: str = "",
        written: Callable[[], None] | None = None,
        /,
        **fields: Any,
    ) -> None:
        """Do some work while nothing else is changed, writes down what came of it, and logs the event for it.

        `written` is called when it is on disk.
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
        """Return when the last change is written; there will be no other."""
        self._closed = True
        await asyncio.gather(*self._changes, return_exceptions=True)

    async def save(self) -> None:
        """Write everything down as it is, in the middle of a change. Raises: StoreFailed, which ends the broker."""
        written = self.document()
        if self.importing is not None:
            written[IMPORTING] = self.importing
        try:
            await asyncio.to_thread(self._file.write, written)
        except Exception as error:
            self._fail(error)
            raise

    def document(self) -> dict[str, Any]:
        """Return all of it as a definitions document."""
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
        """Take what a document says of the whole broker; its vhosts are there or offline. Raises: ValueError."""
        for user in users:
            known = self.users.get(user.name)  # limits that a document does not speak of stay, as in RabbitMQ
            limits = user.limits if known is None else known.limits.updated(user.limits.to_json())
            self.users.put(replace(user, limits=limits))
        for found in document.vhosts:
            self._take_facts(found.name, found.facts)
            if found.facts.get("limits"):
                self.parameters[_limits_key(found.name)] = found.facts["limits"]
        for right in document.permissions:
            if not self.users.is_configured(right.user):  # they may do everything
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

    def _take_facts(self, vhost: str, facts: Mapping[str, Any]) -> None:
        self.vhost_facts[vhost] = dict(facts)
        if vhost in self.vhosts:
            self.vhosts[vhost].default_queue_type = default_type(facts)

    def _take_limits(self, name: str) -> None:
        """Limit a vhost to what its parameter says. What SlotMQ 0.1 kept there was not checked."""
        vhost = self.vhosts[name]
        try:
            table = vhost_limits_table(self.parameters.get(_limits_key(name)))
        except ValueError as bad:
            _log.warning("vhost.limits_ignored", vhost=name, reason=str(bad))
            del self.parameters[_limits_key(name)]
            table = {}
        vhost.limits = vhost.limits.limited_by(table)

    def _take_policies(self, vhost: str, document: Document) -> None:
        """Set all policies of a vhost at once: each time they change, every queue is looked at."""
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


def _event_fields(limits: Mapping[str, int]) -> dict[str, int]:
    return {name.replace("-", "_"): value for name, value in limits.items()}


def policy_of(entry: PolicyEntry) -> Policy:
    """Return the policy of a document's entry."""
    return Policy(entry.name, entry.pattern, entry.apply_to, entry.definition, entry.priority)
