"""Import a definitions document into the running broker: all of it, or nothing.

First the document is rehearsed: each vhost that it names is copied in memory, and the document's exchanges, queues and
bindings are declared in the copy by the code that serves clients. The document is applied only if nothing was refused.
After a crash during that, the next start finishes it. Long documents are applied in slices, between which the loop
turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.administration.deciding import answers, decided
from broker.administration.definitions import VHOST_LIMITS, Draft, policy_of
from broker.administration.import_tally import ImportTally
from broker.administration.vhost_changes import VhostChanges
from broker.amqp.errors import ChannelError, ProtocolError
from broker.core.auth.permissions import patterns
from broker.core.auth.topic_permissions import topic_permission_of
from broker.core.auth.users import User, user_of
from broker.core.definitions.document import (
    BindingEntry,
    Document,
    ExchangeEntry,
    ParameterEntry,
    PolicyEntry,
    QueueEntry,
)
from broker.core.definitions.reading import BadDefinitions
from broker.core.definitions.writing import document_fields
from broker.core.policy.policy import Policies
from broker.core.postponed import Postponed
from broker.core.queue.default_type import default_type, ignored_default_type, with_default_type
from broker.core.vhost_limits import vhost_limits_table
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.rehearsal import Rehearsal
    from broker.core.vhost import Vhost

__all__ = ["MADE", "DefinitionsImport"]

Tell = Callable[[Mapping[str, Any]], None]
Entry = ExchangeEntry | QueueEntry | BindingEntry

TOPOLOGY: Final = ("exchanges", "queues", "bindings")  # in the order of their dependencies
MADE: Final = "made"  # the key of the vhosts that an import made
ENTRIES_AT_ONCE: Final = 100
NAMED_MAX: Final = 100  # entries without effect that the log names; the command names all
NOT_FOUND: Final = 404
USER_FIELDS: Final = ("name", "password_hash", "hashing_algorithm", "password", "limits")
BROKERS_OWN: Final = "amq."  # RabbitMQ skips such entries too: they exist, or may not be declared

_log = get_logger()


class DefinitionsImport:
    """The import of one document.

    Raises: BadDefinitions, naming the entry, when any entry is refused; then nothing is changed.
    """

    def __init__(
        self,
        document: Document,
        administration: Administration,
        rehearse: Rehearsal,
        tell: Tell,
        *,
        skip_refused: bool = False,
        made: Iterable[str] = (),
    ) -> None:
        """`skip_refused` skips exchanges, queues and bindings that are refused, instead of refusing the document.

        `made` are the vhosts that this import made before a crash interrupted it.
        """
        self._document = document
        self._administration = administration
        self._vhosts = VhostChanges(administration)
        self._rehearse = rehearse
        self._tell = tell
        self._users: list[User] = []
        self._undo: list[Callable[[], Any]] = []
        self._skip_refused = skip_refused
        self._made = list(made)
        self._refused: dict[tuple[str, int], str] = {}
        self.skipped: list[str] = []
        self._tally: ImportTally | None = None

    async def run(self) -> dict[str, int]:
        """Apply the document and return how many entries of each kind it has, once all of it is on disk.

        ``skipped`` then names the skipped entries, and `outcome` counts the others.
        """
        await self._administration.alone(self._take)
        document = self._kept()
        counts = {name: len(getattr(document, name)) for name in document.__slots__ if name != "unknown"}
        for reason in self.skipped:
            _log.warning("definitions.entry_skipped", reason=reason)
        outcome = self.outcome()
        unused = outcome.pop("without_effect")
        _log.info("definitions.imported", **outcome, without_effect=unused[:NAMED_MAX], skipped=len(self.skipped))
        return counts

    def outcome(self) -> dict[str, Any]:
        """Return how many entries were made, changed or present, and the names of those without effect."""
        assert self._tally is not None, "ask after the import"
        return self._tally.fields()

    async def _take(self) -> None:
        self._document = replace(self._document, queues=tuple(self._typed_queues()))
        await self._check()
        administration = self._administration
        self._tally = ImportTally(self._document, administration.document())
        written = await asyncio.to_thread(document_fields, self._kept(), self._users)
        await administration.store(partial(self._begin, written))
        try:
            skipped = await self._declare_all(
                "importing", administration.vhosts.__getitem__, self._undo, tally=self._tally
            )
        except (BadDefinitions, ValueError):
            for undo in reversed(self._undo):
                await decided(undo)
            await administration.vhosts.drain()  # refused changes must not come back after a restart
            await administration.store(self._give_up)
            raise
        self.skipped = [*self._ignored(), *self._refused.values(), *skipped]
        await administration.vhosts.drain()
        await administration.store(self._finish)  # it was checked: it is not refused
        self._tally.compare(administration.document())

    def _begin(self, written: dict[str, Any], draft: Draft) -> None:
        """Write down that the document is being applied, and add its vhosts: after a crash the next start goes on."""
        for vhost in self._document.vhosts:
            if vhost.name not in draft.vhost_names:
                draft.add_vhost(vhost.name, vhost.facts)
                self._made.append(vhost.name)
        draft.importing = {**written, MADE: self._made}

    def _give_up(self, draft: Draft) -> None:
        draft.importing = None
        for name in set(draft.vhost_names).intersection(self._made):
            draft.drop_vhost(name)

    def _finish(self, draft: Draft) -> None:
        draft.importing = None
        draft.take_import(self._document, self._users)

    def _typed_queues(self) -> Iterator[QueueEntry]:
        """Yield the queues; one without a type gets the default type that its vhost will have."""
        types = {name: vhost.default_queue_type for name, vhost in self._administration.vhosts.items()}
        types |= {vhost.name: default_type(vhost.facts) for vhost in self._document.vhosts}
        for entry in self._document.queues:
            if entry.type is not None:
                yield entry
                continue
            arguments = with_default_type(
                entry.arguments,
                types.get(entry.vhost),
                durable=entry.durable,
                exclusive=False,
                auto_delete=entry.auto_delete,
            )
            yield replace(entry, arguments=arguments)

    def _ignored(self) -> Iterator[str]:
        for number, vhost in enumerate(self._document.vhosts):
            reason = ignored_default_type(vhost.facts)
            if reason is not None:
                yield f"vhosts[{number}]: {reason}"

    # -- the check ----------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        administration, document = self._administration, self._document
        for name, offline in administration.vhosts.offline.items():
            if name in {vhost.name for vhost in document.vhosts}:
                raise BadDefinitions(f"Virtual host '{name}' is down: {offline.reason}")
        known = {*administration.vhosts, *(vhost.name for vhost in document.vhosts)}
        for part in ("permissions", "topic_permissions", "policies", "parameters", "exchanges", "queues", "bindings"):
            for number, entry in enumerate(getattr(document, part)):
                if entry.vhost in administration.vhosts.offline:
                    reason = administration.vhosts.offline[entry.vhost].reason
                    raise BadDefinitions(
                        f"{_place(part, number, entry)}: Virtual host '{entry.vhost}' is down: {reason}"
                    )
                if entry.vhost not in known:
                    raise BadDefinitions(f"{_place(part, number, entry)}: Virtual host '{entry.vhost}' does not exist")
        names = dict.fromkeys(vhost.name for vhost in document.vhosts if vhost.name not in administration.vhosts)
        try:
            self._vhosts.check_new(administration, names)
        except ValueError as error:
            raise BadDefinitions(f"vhosts: {error}") from None
        await self._check_users()
        self._check_rights()
        self._check_policies()
        self._check_limits()
        async with self._rehearse(document.topology_vhosts) as copies:
            await self._declare_all("checking", copies.__getitem__, [], self._refused)
        if self._refused and not self._skip_refused:
            first, *others = self._refused.values()
            raise BadDefinitions(f"{first}{f' (and {len(others)} more entries are refused)' if others else ''}")

    async def _check_users(self) -> None:
        for number, entry in enumerate(self._document.users):
            fields = {name: getattr(entry, name) for name in USER_FIELDS} | {"tags": list(entry.tags)}
            try:
                if entry.password:  # hashing is slow on purpose
                    self._users.append(await asyncio.to_thread(user_of, fields))
                else:
                    self._users.append(user_of(fields))
            except ValueError as error:
                raise BadDefinitions(f"users[{number}]: {error}") from None

    def _check_rights(self) -> None:
        known = {*self._administration.users, *(user.name for user in self._users)}
        document = self._document
        for number, right in enumerate(document.permissions):
            try:
                if right.user not in known:
                    raise ValueError(f"User '{right.user}' does not exist")
                patterns(right.configure, right.write, right.read)
            except ValueError as error:
                raise BadDefinitions(f"permissions[{number}]: {error}") from None
        for number, topic in enumerate(document.topic_permissions):
            try:
                if topic.user not in known:
                    raise ValueError(f"User '{topic.user}' does not exist")
                topic_permission_of({name: getattr(topic, name) for name in topic.__slots__})
            except ValueError as error:
                raise BadDefinitions(f"topic_permissions[{number}]: {error}") from None

    def _check_policies(self) -> None:
        nowhere = Policies(lambda: None)
        for number, entry in enumerate(self._document.policies):
            try:
                nowhere.set(policy_of(entry), operator=entry.operator)
            except ValueError as error:
                raise BadDefinitions(f"{_place('policies', number, entry)}: {error}") from None

    def _check_limits(self) -> None:
        tables = [
            (f"vhosts[{number}]", entry.facts.get("limits")) for number, entry in enumerate(self._document.vhosts)
        ] + [
            (_place("parameters", number, entry), entry.value)
            for number, entry in enumerate(self._document.parameters)
            if entry.component == VHOST_LIMITS
        ]
        for place, table in tables:
            try:
                vhost_limits_table(table)
            except ValueError as error:
                raise BadDefinitions(f"{place}: {error}") from None

    # -- exchanges, queues, bindings ----------------------------------------------------------------------------------

    async def _declare_all(
        self,
        step: str,
        vhost_of: Callable[[str], Vhost],
        undo: list[Callable[[], Any]],
        refused: dict[tuple[str, int], str] | None = None,
        tally: ImportTally | None = None,
    ) -> list[str]:
        """Declare everything and return the bindings with a missing source or destination.

        These are skipped, as in RabbitMQ: its 3.x exports leave out internal exchanges and keep their bindings. Refused
        entries are added to `refused`. Raises: BadDefinitions for a refused entry when `refused` is None.
        """
        skipped: list[str] = []
        proposed: set[tuple[str, int]] = set()  # entries that every broker of a cluster has to make
        total = len(self._document.exchanges) + len(self._document.queues) + len(self._document.bindings)
        done = 0
        failed: BadDefinitions | None = None
        for part, entries in self._topology():
            self._tell({"step": step, "done": done, "total": total})
            await asyncio.sleep(0)
            done += len(entries)
            waiting = entries
            while waiting:
                postponed: list[tuple[tuple[int, Entry], Postponed]] = []
                for number, entry in waiting:
                    vhost = vhost_of(entry.vhost)
                    try:
                        made = _declare(vhost, entry) or (part, number) in proposed
                        if made:
                            undo.append(partial(_remove, vhost, entry))
                        if tally is not None:
                            tally.declared(part, new=made)
                    except Postponed as unanswered:
                        proposed.add((part, number))
                        postponed.append(((number, entry), unanswered))
                    except (ProtocolError, ValueError) as error:
                        if (
                            isinstance(entry, BindingEntry)
                            and isinstance(error, ChannelError)
                            and error.reply_code == NOT_FOUND
                        ):
                            skipped.append(f"{part}[{number}]: {error}")
                        elif refused is not None:
                            refused[part, number] = f"{part}[{number}]: {error}"
                        else:  # what was proposed already is waited for, so that it can be undone
                            failed = failed or BadDefinitions(f"{part}[{number}]: {error}")
                await answers([unanswered for _, unanswered in postponed])
                waiting = [entry for entry, _ in postponed]
            if failed is not None:
                raise failed
        self._tell({"step": step, "done": total, "total": total})
        return skipped

    def _topology(self) -> Iterator[tuple[str, list[tuple[int, Entry]]]]:
        """Yield the entries with their numbers, those of one part in slices."""
        for part in TOPOLOGY:
            entries: Sequence[Entry] = getattr(self._document, part)
            kept = [(number, entry) for number, entry in enumerate(entries) if (part, number) not in self._refused]
            for at in range(0, len(kept), ENTRIES_AT_ONCE):
                yield part, kept[at : at + ENTRIES_AT_ONCE]

    def _kept(self) -> Document:
        """Return the document without its refused entries."""
        if not self._refused:
            return self._document
        kept: dict[str, list[Entry]] = {part: [] for part in TOPOLOGY}
        for part, entries in self._topology():
            kept[part] += [entry for _, entry in entries]
        return replace(self._document, **{part: tuple(entries) for part, entries in kept.items()})  # type: ignore[arg-type]


def _place(part: str, number: int, entry: Any) -> str:
    """Return the place of an entry. Operator policies are listed among the parameters, so their numbers say nothing."""
    if isinstance(entry, ParameterEntry):
        return f"{part}: {entry.component} '{entry.name}'"
    if isinstance(entry, PolicyEntry):
        return f"operator policy '{entry.name}'" if entry.operator else f"{part}[{number}] '{entry.name}'"
    return f"{part}[{number}]"


def _declare(vhost: Vhost, entry: Entry) -> bool:
    """Declare an entry, and return whether it was made now."""
    if isinstance(entry, ExchangeEntry):
        return _declare_exchange(vhost, entry)
    return _declare_queue(vhost, entry) if isinstance(entry, QueueEntry) else _bind(vhost, entry)


def _declare_exchange(vhost: Vhost, entry: ExchangeEntry) -> bool:
    if not entry.name or entry.name.startswith(BROKERS_OWN):
        return False
    is_new = entry.name not in vhost.exchanges
    vhost.exchanges.declare(
        entry.name,
        entry.type,
        durable=entry.durable,
        auto_delete=entry.auto_delete,
        internal=entry.internal,
        arguments=dict(entry.arguments),
    )
    return is_new


def _declare_queue(vhost: Vhost, entry: QueueEntry) -> bool:
    if not entry.name or entry.name.startswith(BROKERS_OWN):
        return False
    is_new = entry.name not in vhost.queues
    vhost.queues.declare(
        entry.name, durable=entry.durable, auto_delete=entry.auto_delete, arguments=dict(entry.arguments)
    )
    return is_new


def _bind(vhost: Vhost, entry: BindingEntry) -> bool:
    if not entry.source:  # the default exchange: each queue is bound to it by its name already
        return False
    bindings, before = vhost.bindings, vhost.bindings.live.count
    ends = (entry.destination, entry.source, entry.routing_key, dict(entry.arguments))
    if entry.to_exchange:
        bindings.bind_exchange(*ends)
    else:
        bindings.bind(*ends)
    return bindings.live.count > before


def _remove(vhost: Vhost, entry: Entry) -> None:
    """Remove what an entry made."""
    if isinstance(entry, ExchangeEntry):
        vhost.exchanges.delete(entry.name)
    elif isinstance(entry, QueueEntry):
        vhost.queues.delete(entry.name, None)
    else:
        ends = (entry.destination, entry.source, entry.routing_key, dict(entry.arguments))
        if entry.to_exchange:
            vhost.bindings.unbind_exchange(*ends)
        else:
            vhost.bindings.unbind(*ends)
