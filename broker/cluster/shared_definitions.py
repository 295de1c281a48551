"""The definitions of a cluster: one document in PostgreSQL, which every node applies.

A node that changes it waits until all members have applied it, so an answered change is in force on every node.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from broker.cluster.database import Database
from broker.cluster.errors import ClusterError, DatabaseFails, Fenced, StatementRefused
from broker.cluster.hint import DEFINITIONS, Hint
from broker.cluster.shared_queue import refuse_policies
from broker.cluster.topology_changes import VhostForgotten
from broker.core.definitions.reading import NotStored, OutcomeUnknown
from broker.core.policy.policy import OPERATOR_POLICY
from broker.core.vhost import Vhost
from broker.tasks import WakeUp

LOOK_INTERVAL_S: Final = 1.0  # between checks for a change whose hint was lost
WAIT_S: Final = 0.005  # the first pause while other nodes do not follow yet; each further pause is twice as long
WAIT_MAX_S: Final = 0.1


class Follower(Protocol):
    """The definitions in force on this node. See `Administration`."""

    version: int

    async def follow(self, *, anew: bool) -> None: ...
    async def swept(self) -> None: ...


async def _nothing() -> None:
    """Do nothing, because the node routes no message before it follows the definitions."""


class SharedDefinitions:
    """The DefinitionsStore of a node. A stored change whose answer was lost is followed like another node's change.

    Invariant: this node reports a version after it has applied the definitions and `flushed` has returned. By then
        policies are applied to all queues, and messages routed before are committed.
    """

    def __init__(self, database: Database, limits_changed: Callable[[str], Awaitable[None]]) -> None:
        """`limits_changed` replaces the limits of a vhost's queues in PostgreSQL."""
        self._database = database
        self._limits_changed = limits_changed
        self.flushed: Callable[[], Awaitable[None]] = _nothing
        self._vhosts: set[str] = set()
        self._rules: list[Any] = []  # the policies and operator policies
        self._unlimited = (0, 0.0)  # a version whose limits must still be replaced, and when that was first seen
        self._dropped: dict[str, list[int]] = {}  # the levels of deleted vhosts
        self._epoch = 0  # the epoch in which the definitions were last followed
        self._applied = 0
        self._reported = (0, 0)  # the epoch and the version
        self._reporting = asyncio.Lock()
        self._look = WakeUp()

    # -- the store ----------------------------------------------------------------------------------------------------

    async def read(self) -> tuple[int, dict[str, Any] | None]:
        """Return the version and the definitions, or 0 and None before the first change. Raises: NotStored."""
        try:
            rows = await self._database.function("read", "definitions_read")
        except ClusterError as error:
            raise NotStored(f"the cluster's definitions cannot be read: {error}") from error
        if not rows:
            return 0, None
        definitions: dict[str, Any] = json.loads(rows[0]["body"])
        self._vhosts, self._rules = _vhosts_of(definitions), _rules_of(definitions)
        return rows[0]["version"], definitions

    async def write(self, definitions: Mapping[str, Any], expected: int) -> int | None:
        """Replace the definitions unless another node has replaced version `expected`; return the new version or None.

        Raises: NotStored if nothing was changed; OutcomeUnknown; ValueError for a refused policy.
        """
        body = json.dumps(definitions, ensure_ascii=False, allow_nan=False).encode()
        vhosts, rules = _vhosts_of(definitions), _rules_of(definitions)
        refuse_policies(rules)
        gone = sorted(self._vhosts - vhosts)
        changes = [json.dumps([VhostForgotten(vhost=name).to_json()]).encode() for name in gone]
        names = [name.encode() for name in gone]
        try:
            rows = await self._database.acting(
                "upkeep", "definitions_write", expected, body, names, changes, rules != self._rules
            )
        except Fenced as error:
            raise NotStored("nothing was changed: this node is joining the cluster again") from error
        except (DatabaseFails, StatementRefused) as error:
            raise NotStored(f"nothing was changed: {error}") from error
        except ClusterError as error:
            raise OutcomeUnknown(f"it is not known whether the change was stored: {error}") from error
        version: int | None = rows[0][0]
        if version is not None:
            self._vhosts, self._rules = vhosts, rules
            await self._database.notify(Hint(DEFINITIONS))
        return version

    def dropped(self, vhost: Vhost) -> None:
        """Record the levels of a deleted vhost's queues, so that PostgreSQL drops their messages."""
        levels = [number for queue in vhost.queues.values() for number in queue.numbers]
        self._dropped.setdefault(vhost.name, []).extend(levels)

    async def settled(self, version: int, swept: Collection[str] = ()) -> None:
        """Wait until all members follow a version; then store limits of queues of `swept` vhosts. Raises: NotStored."""
        if not version:
            return
        self._applied, pause_s = version, WAIT_S
        try:
            await self._report()
            while await self._behind(version):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, WAIT_MAX_S)
        except ClusterError as error:
            raise NotStored(f"it is not known whether all nodes follow the change: {error}") from error
        self._look.set()  # deleted vhosts can be forgotten now
        if swept:
            try:
                await self._replace_limits(swept)
            except ClusterError as error:
                raise NotStored(f"it is not known whether the limits of queues hold: {error}") from error

    async def _replace_limits(self, vhosts: Iterable[str]) -> None:
        """Store the limits that result from the policies of the reported version. Raises: ClusterError."""
        version = self._reported[1]
        for vhost in vhosts:
            await self._limits_changed(vhost)
        await self._database.acting("upkeep", "definitions_limited", version)

    # -- following ----------------------------------------------------------------------------------------------------

    def hint(self) -> None:
        """Check soon, because another node has changed the definitions."""
        self._look.set()

    async def run(self, follower: Follower, flushed: Callable[[], Awaitable[None]]) -> None:
        """Follow the changes of other nodes; `flushed` waits until policies are applied and messages are committed."""
        self.flushed = flushed
        while True:
            with suppress(ClusterError, ValueError):  # the link reports an unreachable database
                await self._follow(follower)
            await self._look.wait(LOOK_INTERVAL_S)

    async def _follow(self, follower: Follower) -> None:
        epoch = self._database.epoch
        if not epoch:
            return
        rows = await self._database.function("read", "definitions_look")
        anew = self._epoch not in (0, epoch)  # the database may have gone back in time before this node joined again
        if anew or rows[0]["version"] != follower.version:
            await follower.follow(anew=anew)
        self._applied = follower.version
        self._epoch = epoch
        await self._report()
        if rows[0]["pending"]:
            await self._database.acting("upkeep", "forget_vhosts")
        await self._finish_limits(rows[0]["version"] if rows[0]["unlimited"] else 0)

    async def _finish_limits(self, version: int) -> None:
        """Replace the limits that the writer of a version has not replaced in time, once all nodes follow it."""
        now_s = asyncio.get_running_loop().time()
        if version != self._unlimited[0]:
            self._unlimited = version, now_s
            return
        waited_s = now_s - self._unlimited[1]
        if version and waited_s >= LOOK_INTERVAL_S and not await self._behind(version):
            await self._replace_limits(sorted(self._vhosts))

    async def _behind(self, version: int) -> list[Any]:
        """Return the members that do not yet follow a version. Raises: ClusterError."""
        return await self._database.function("read", "definitions_behind", version)

    async def _report(self) -> None:
        """Report the levels of deleted vhosts, and the version that this node follows. Raises: ClusterError."""
        async with self._reporting:
            now = (self._database.epoch, self._applied)
            if now == self._reported or not self._applied:
                return
            dropped, self._dropped = self._dropped, {}
            try:
                await self.flushed()
                for name, levels in dropped.items():
                    await self._database.acting("upkeep", "definitions_dropped", name.encode(), levels)
                await self._database.acting("upkeep", "definitions_follow", now[1])
            except BaseException:
                for name, levels in dropped.items():
                    self._dropped[name] = [*levels, *self._dropped.get(name, ())]
                raise
            self._reported = now


def _rules_of(definitions: Mapping[str, Any]) -> list[Any]:
    operators = [row for row in definitions.get("parameters", ()) if row["component"] == OPERATOR_POLICY]
    return [*definitions.get("policies", ()), *operators]


def _vhosts_of(definitions: Mapping[str, Any]) -> set[str]:
    return {row["name"] for row in definitions["vhosts"]}
