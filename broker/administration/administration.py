"""The definitions in force, and their changes: each is tried on a draft, stored, applied in memory, then answered.

The definitions are stored as one document. Brokers that share it also apply the changes that another broker stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from broker.administration.definitions import (
    IMPORTING,
    PAUSED_QUEUE,
    VHOST_LIMITS,
    Changes,
    Definitions,
    DefinitionsStore,
    Draft,
    differing,
)
from broker.administration.slices import run_in_slices
from broker.core.auth.permissions import Permissions
from broker.core.auth.users import Users
from broker.core.definitions.reading import NotWritten
from broker.core.policy.policy import OPERATOR_POLICY, Policies
from broker.core.queue.queue_arguments import default_type
from broker.core.vhost import Vhost
from broker.core.vhost_limits import vhost_limits_table
from broker.event_log import get_logger
from broker.settings import Settings
from broker.store.damage import StoreFailed
from broker.tasks import Tasks
from broker.vhosts.vhosts import Vhosts

PROGRESS_INTERVAL_S: Final = 1.0
RETRY_S: Final = 1.0  # between two attempts to store delayed edits

ReportProgress = Callable[[Mapping[str, Any]], None]
T = TypeVar("T")

_log = get_logger()


class Administration(Definitions):
    """Keep the definitions in force and perform changes one at a time.

    Raises: ValueError from a change that is refused, with RabbitMQ's text if it has one; nothing is changed then.
        NotStored, a ValueError, if a change cannot be stored now, or it is not known whether all brokers have it.
        StoreFailed, which ends the broker, if a crash may undo the change, or a vhost cannot be removed.
    Invariant: a change that has begun is finished even if its caller is cancelled, unless `close` is cancelled, too.
        The definitions in force are the stored ones, except while a stored change is being applied.
    """

    def __init__(
        self,
        store: DefinitionsStore,
        vhosts: Vhosts,
        users: Users,
        permissions: Permissions,
        *,
        vhosts_max: int,
        close_connections: Callable[[Callable[[Any], bool], str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`close_connections` closes the connections whose session a predicate accepts, with a reason."""
        super().__init__()
        self._users, self._permissions = users, permissions
        self.vhosts = vhosts
        self.vhosts_max = vhosts_max
        self.version = 0
        self._store = store
        self._close_connections = close_connections
        vhosts.close_with(self._close_connections_of)
        self._fail = fail
        self._lock = asyncio.Lock()  # held during a change of this broker
        self._applying = asyncio.Lock()  # held while definitions are stored and applied, but not throughout an import
        self._changes = Tasks.logged("definitions.failed")
        self._delayed: list[Callable[[Draft], None]] = []  # edits that are stored together with the next change
        self.closed = False  # the broker is stopping: long work must end

    def apply_settings(self, settings: Settings) -> None:
        self.vhosts_max = settings.limits.vhosts_max

    # -- definitions in force -----------------------------------------------------------------------------------------

    @property
    def vhost_names(self) -> list[str]:
        """The sorted names of all vhosts; offline ones may lack an entry in the definitions."""
        return sorted({*self.vhost_facts, *self.vhosts, *self.vhosts.offline})

    def policies(self, vhost: str) -> Policies:
        """Return the policies of a vhost; none if it is offline or does not exist."""
        found = self.vhosts.get(vhost)
        return Policies() if found is None else found.policies

    def set_facts(self, vhost: str, facts: Mapping[str, Any]) -> None:
        """Set the entry of a vhost, and the default queue type of an online vhost."""
        super().set_facts(vhost, facts)
        if vhost in self.vhosts:
            self.vhosts[vhost].set_default_queue_type(default_type(facts))

    def set_parameter(self, key: tuple[str, str, str], value: Any) -> None:
        """Set a parameter of a vhost, and apply it if it limits the vhost or pauses a queue."""
        super().set_parameter(key, value)
        self._apply_parameter(key)

    def drop_parameter(self, key: tuple[str, str, str]) -> None:
        """Remove a parameter of a vhost, and the limits or the pause that it set."""
        super().drop_parameter(key)
        self._apply_parameter(key)

    def _apply_parameter(self, key: tuple[str, str, str]) -> None:
        vhost = self.vhosts.get(key[0])
        if vhost is None:
            return
        if key[1] == VHOST_LIMITS:
            vhost.set_limits(vhost_limits_table(self.parameters.get(key)))
        elif key[1] == PAUSED_QUEUE:
            vhost.queues.set_paused(key[2], paused=key in self.parameters)

    def _close_connections_of(self, vhost: Vhost, reason: str) -> None:
        self._close_connections(lambda session: session.vhost is vhost, reason)

    # -- changes ------------------------------------------------------------------------------------------------------

    async def alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` while no other change of this broker runs, and return its result."""
        return await self._changes.finish(self._alone(work))

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            if self.closed:
                raise ValueError("the broker is stopping")
            return await work()

    async def close(self) -> None:
        """Refuse further changes and wait for running ones, which are cancelled if the caller is."""
        self.closed = True
        await self._changes.ended()

    async def change(self, edit: Callable[[Draft], T], event: str = "", /, **fields: Any) -> T:
        """Call `edit` with a draft, store and apply the draft, and return the result once all brokers have applied it.

        `edit` may return a generator, which edits the draft in steps. If another broker stores a change first, `edit`
        is called again with a new draft. A vhost among the fields of the event must exist and be online.
        """
        return await self._changes.finish(self._alone(lambda: self.store(edit, event, **fields)))

    async def store(self, edit: Callable[[Draft], T], event: str = "", /, **fields: Any) -> T:
        """Perform a change as `change` does, for callers within `alone`.

        The change begins once every broker has applied the previous one. Otherwise a broker could miss that a vhost was
        deleted and added again.
        """
        while True:
            await self._store.settled(self.version)
            async with self._applying:
                draft = Draft(self, self.vhosts.offline)
                for delayed in self._delayed:
                    delayed(draft)
                if "vhost" in fields:
                    draft.check_vhost(fields["vhost"])
                result = edit(draft)
                if isinstance(result, Generator):
                    await run_in_slices(result)
                if (swept := await self._try(draft)) is not None:
                    self._delayed.clear()
                    break
                await self._apply_stored()  # another broker stored a change first: call `edit` again
        if event:
            _log.info(event, **fields)
        await self._store.settled(self.version, [name for name in swept if name in self.vhosts])
        return result

    def store_later(self, edit: Callable[[Draft], None]) -> None:
        """Keep an edit that could not be stored, and retry until it is stored or the broker stops."""
        self._delayed.append(edit)
        self._changes.start(self._store_delayed())

    async def _store_delayed(self) -> None:
        """Retry until the delayed edits are stored; once the broker stops, try one last time."""
        last = False
        while self._delayed and not last:
            await asyncio.sleep(RETRY_S)
            last = self.closed
            async with self._lock:
                try:
                    await self.store(lambda _draft: None)
                except ValueError as error:
                    if last:
                        _log.error("definitions.not_undone", reason=str(error))

    async def _try(self, draft: Draft) -> set[str] | None:
        """Store and apply a draft. Return the vhosts whose policies changed, or None if another broker stored first."""
        wanted = await run_in_slices(draft.storing())
        changes = await run_in_slices(differing(self.stored, wanted))
        created = self._missing_vhosts(changes)
        if created:
            await self._create_vhosts(created)
        try:
            version = await self._store.write(wanted, self.version)
        except (ValueError, TypeError):
            await self._delete_created(created)
            raise
        except Exception as error:
            self._fail(error)  # the new vhosts are kept: the next start may find the new definitions, which need them
            raise
        if version is None:
            await self._delete_created(created)
            return None
        return await self._apply_or_fail(version, wanted, changes)

    def check_new_vhosts(self, definitions: Definitions, names: Iterable[str]) -> None:
        """Check the names of vhosts that do not exist yet, and their number. Raises: ValueError."""
        names = list(names)
        for name in names:
            if not self.vhosts.fits(name):
                raise ValueError(f"cannot create vhost '{name}': the name is empty or longer than 255 bytes")
        if names and len(definitions.vhost_names) + len(names) > self.vhosts_max:
            raise ValueError(f"cannot create vhost '{names[-1]}': vhost limit of {self.vhosts_max} is reached")

    def _missing_vhosts(self, changes: Changes) -> list[str]:
        """Return the vhosts that the changes require and that do not exist yet."""
        names = [key[1] for key, row in changes.items() if key[0] == "vhosts" and row is not None]
        return [name for name in names if name not in self.vhosts and not self.vhosts.is_down(name)]

    async def _create_vhosts(self, names: list[str]) -> None:
        """Create all of the vhosts or none. Raises: NotWritten; StoreFailed if a created vhost cannot be removed."""
        for number, name in enumerate(names):
            try:
                await self._add(name)
            except StoreFailed as failed:  # nothing is stored yet, so the broker continues
                await self._delete_created(names[:number])
                _log.error("definitions.not_written", reason=str(failed))
                raise NotWritten(f"cannot create vhost '{name}': {failed}") from failed

    async def _add(self, name: str) -> None:
        await self.vhosts.add(name)
        _log.info("vhost.created", vhost=name)

    async def _delete_created(self, names: Iterable[str]) -> None:
        for name in names:
            self._hide(name)
            await self._remove(name)

    # -- applying -----------------------------------------------------------------------------------------------------

    async def open(self, version: int, stored: Mapping[str, Any]) -> None:
        """Apply stored definitions at startup, after their vhosts were opened."""
        await self._apply(version, stored, await run_in_slices(differing(self.stored, stored)))

    async def follow(self, *, anew: bool = False) -> None:
        """Apply definitions stored by another broker; with `anew`, even if their version was applied before.

        Raises: ValueError if the stored definitions cannot be reached.
        """
        async with self._applying:
            await self._apply_stored(anew=anew)

    async def swept(self, *names: str, report: ReportProgress = lambda _progress: None) -> None:
        """Wait until the policies of the named vhosts, by default all, are applied to every queue and exchange."""
        for vhost in [self.vhosts[name] for name in names or self.vhosts if name in self.vhosts]:
            if not vhost.sweep.pending:
                continue
            done = asyncio.Event()
            total = len(vhost.sweep)
            vhost.sweep.follow(done.set)
            while not done.is_set():
                total = max(total, len(vhost.sweep))  # the sweep may have been restarted
                report({"step": "applying policies", "done": total - len(vhost.sweep), "total": total})
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROGRESS_INTERVAL_S):
                        await done.wait()

    async def _apply_stored(self, *, anew: bool = False) -> None:
        version, stored = await self._store.read()
        if stored is None or (version == self.version and not anew):
            return
        known = self.version
        await self._apply_or_fail(version, stored, await run_in_slices(differing(self.stored, stored)))
        if version != known:
            _log.info("definitions.followed", version=version)

    async def _apply_or_fail(self, version: int, stored: Mapping[str, Any], changes: Changes) -> set[str]:
        try:
            return await self._apply(version, stored, changes)
        except Exception as error:
            self._fail(error)  # the definitions in force would contradict the stored ones
            raise

    async def _apply(self, version: int, stored: Mapping[str, Any], changes: Changes) -> set[str]:
        """Apply the changes that lead to the stored definitions, and return the vhosts whose policies have changed."""
        for part, name in [(key[0], key[1]) for key, row in changes.items() if row is None]:
            if part == "vhosts":
                self._hide(name)
                await self._remove(name)
                _log.info("vhost.deleted", vhost=name)
        for name in self._missing_vhosts(changes):
            await self._add(name)
        swept: dict[str, Vhost] = {}
        await run_in_slices(self._applying_rows(changes, swept))
        for vhost in swept.values():
            vhost.policies.changed()
        self.stored = stored
        self.importing = stored.get(IMPORTING)
        self.version = version
        return set(swept)

    def _applying_rows(self, changes: Changes, swept: dict[str, Vhost]) -> Generator[None, None, None]:
        """Apply changed rows, one per step, and add the vhosts whose policies have changed to `swept`."""
        for key, row in changes.items():
            self.put_row(key, row)
            if key[1] in self.vhosts and (key[0] == "policies" or key[2:3] == (OPERATOR_POLICY,)):
                swept[key[1]] = self.vhosts[key[1]]
            yield

    def _hide(self, name: str) -> None:
        """Close the connections of a vhost and drop its entry, but keep its engine and files."""
        if self.vhosts.offline.pop(name, None) is None:
            self._close_connections_of(self.vhosts.hide(name), f"vhost '{name}' is deleted")
        self.vhost_facts.pop(name, None)

    async def _remove(self, name: str) -> None:
        """Stop the engine of a vhost and remove its files. Raises: StoreFailed; each error ends the broker."""
        try:
            await self.vhosts.remove(name)
        except Exception as error:
            self._fail(error)
            raise
