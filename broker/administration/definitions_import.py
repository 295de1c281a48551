"""Import a definitions document into the running broker: all of it, or nothing.

First the document is compared with the broker. Existing entries are skipped, even if a client deletes them during the
import. The rest is rehearsed: its exchanges, queues and bindings are declared in copies of their vhosts by the code
that serves clients. It is applied only if nothing was refused. After a crash during this, the next start finishes it.
All of this runs in slices, between which the loop turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

from broker.administration.administration import Administration, Tell
from broker.administration.deciding import answers, decided
from broker.administration.definitions import IDENTITIES, Draft, differing, facts_of, keying_rows
from broker.administration.import_tally import ImportTally
from broker.administration.rehearsal import Rehearsal, Touched
from broker.administration.slices import STEPS_AT_ONCE, clear_in_slices, run_in_slices
from broker.administration.topology_entry import TOPOLOGY, Entry, declare, is_declared, remove, touch
from broker.amqp.errors import ChannelError, NodeLost, ProtocolError
from broker.core.auth.users import user_of
from broker.core.definitions.document import BindingEntry, Document, QueueEntry, Row, row_of, writing_document
from broker.core.definitions.reading import BadDefinitions, NotStored, NotWritten, OutcomeUnknown
from broker.core.postponed import Postponed
from broker.core.queue.queue_arguments import default_type, ignored_default_type, with_default_type
from broker.core.vhost import Vhost
from broker.event_log import get_logger

MADE: Final = "made"  # the key of the vhosts that an import made
ENTRIES_AT_ONCE: Final = 50
WAIT_S: Final = 0.1  # the first pause between two attempts of an import; each is twice as long
WAIT_MAX_S: Final = 1.0
WRITES: Final = 5  # attempts to store the end of an import on a disk that refuses it
NAMED_MAX: Final = 100  # entries without effect that the log names; the command names all
NOT_FOUND: Final = 404

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
        at_start: bool = False,
    ) -> None:
        """`skip_refused` skips exchanges, queues and bindings that are refused, instead of refusing the document.

        `made` are the vhosts that this import made before a crash interrupted it. With `at_start` an unknown outcome
        and a full disk end the start; the next one finishes the import.
        """
        self._document = document
        self._administration = administration
        self._rehearse = rehearse
        self._tell = tell
        self._draft = Draft(administration, administration.vhosts.offline)
        self._undo: list[tuple[Vhost, Entry]] = []
        self._skip_refused = skip_refused
        self._made = list(made)
        self._at_start = at_start
        self._refused: dict[tuple[str, int], str] = {}
        self._proposed: set[tuple[str, int]] = set()  # entries that every broker of a cluster has to make
        self.skipped: list[str] = []
        self._tally: ImportTally | None = None
        self._absent: dict[str, list[tuple[int, Entry]]] = {}
        self._touched: dict[str, Touched] = {}
        self._named: set[str] = set()  # vhosts
        self._wait_s = WAIT_S
        self._reasons: set[str] = set()  # of waiting, as logged

    async def run(self) -> dict[str, int]:
        """Apply the document and return how many entries of each kind it has, once all of it is on disk.

        ``skipped`` then names the skipped entries, and `outcome` counts the others.
        """
        try:
            changed = await self._administration.alone(self._take)
            document = self._document
            counts = {name: len(getattr(document, name)) for name in document.__slots__ if name != "unknown"}
        finally:
            if self._tally is not None:
                self._tally.clear()
            document, self._document = self._document, Document()
            entries = [list(getattr(document, part)) for part in document.__slots__]
            del document
            await clear_in_slices(self._undo, *self._absent.values(), *entries)
        for part, _number in self._refused:
            counts[part] -= 1
        for reason in self.skipped:
            _log.warning("definitions.entry_skipped", reason=reason)
        if changed:
            outcome = self.outcome()
            unused = outcome.pop("without_effect")
            _log.info("definitions.imported", **outcome, without_effect=unused[:NAMED_MAX], skipped=len(self.skipped))
        return counts

    def outcome(self) -> dict[str, Any]:
        """Return the numbers of created, changed and present entries, and the names of those without effect."""
        assert self._tally is not None, "ask after the import"
        return self._tally.fields()

    async def _take(self) -> bool:
        """Import the document, and return whether anything had to be done."""
        self._document = replace(self._document, queues=tuple(await run_in_slices(self._typing_queues())))
        await self._check()
        administration = self._administration
        self._tally = ImportTally(self._document, await run_in_slices(keying_rows(administration.stored)))
        await run_in_slices(self._comparing(self._tally))
        changed = any(self._absent.values()) or await run_in_slices(self._changing_definitions())
        if changed:
            await self._rehearsed()
            await self._apply(self._tally)
        reasons = enumerate(map(ignored_default_type, self._document.vhosts))
        ignored = [f"vhosts[{number}]: {reason}" for number, reason in reasons if reason is not None]
        self.skipped = [*ignored, *self._refused.values(), *self.skipped]
        await run_in_slices(self._tally.comparing(await run_in_slices(keying_rows(administration.stored))))
        return changed

    async def _apply(self, tally: ImportTally) -> None:
        administration = self._administration
        written = await run_in_slices(writing_document(await run_in_slices(self._keeping())))
        version, present, is_unknown = administration.version, tally.present.copy(), False
        while True:
            try:
                await administration.store(partial(self._begin, written))
                await self._finish_applying(tally)
                break
            except (NodeLost, NotStored) as error:  # if it has begun, a start would repeat it, perhaps much later
                is_unknown = is_unknown or (isinstance(error, OutcomeUnknown) and not self._at_start)
                ends = isinstance(error, NotWritten) or administration.closed
                if ends or (administration.version == version and not is_unknown):
                    raise
                await self._wait(error)
                self._undo.clear()
                tally.restart(present)
        await clear_in_slices(*[rows for rows in written.values() if isinstance(rows, list)])

    async def _finish_applying(self, tally: ImportTally) -> None:
        """Declare everything that is absent, and store the rest; undo it if anything is refused, as when another broker
        has deleted a vhost or a user meanwhile, or the disk is full. Raises: NodeLost and NotStored; it may run again
        when the node has joined its cluster again, but not after NotWritten.
        """
        administration = self._administration
        try:
            self.skipped = await self._declare_all("importing", self._vhost, self._undo, tally=tally)
            await administration.vhosts.drain()
            await self._store_end()
        except (BadDefinitions, ProtocolError, ValueError) as error:
            if isinstance(error, NotStored) and (self._ends or not isinstance(error, NotWritten)):
                raise
            await self._undo_all()
            await administration.vhosts.drain()  # refused changes must not come back after a restart
            await self._store_undone()
            raise

    async def _store_end(self) -> None:
        """Store the end of the import; try again for a while if the disk refuses it. Raises: NotWritten."""
        for left in reversed(range(WRITES)):
            try:
                await self._administration.store(self._finish)
                return
            except NotWritten as error:
                if self._administration.closed and not self._at_start:
                    raise OutcomeUnknown(f"the next start finishes the import: {error}") from error
                if self._at_start or not left:
                    raise
                await self._wait(error)

    async def _store_undone(self) -> None:
        """Store that the import was undone; later, if the disk refuses it now."""
        try:
            await self._administration.store(self._give_up)
        except NotWritten:
            if self._ends:
                raise
            self._administration.store_later(self._give_up)

    @property
    def _ends(self) -> bool:
        """Whether the broker waits for this import alone."""
        return self._at_start or self._administration.closed

    async def _wait(self, error: Exception) -> None:
        """Wait before another attempt, and log each reason once."""
        if (reason := str(error)) not in self._reasons:
            self._reasons.add(reason)
            _log.warning("definitions.import_waits", reason=reason)
        await asyncio.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, WAIT_MAX_S)

    async def _undo_all(self) -> None:
        """Remove what was declared, except in vhosts that are gone. What cannot be removed is logged, and stays."""
        left: list[str] = []
        for vhost, entry in reversed(self._undo):
            try:
                if self._is_open(vhost):
                    await decided(partial(remove, vhost, entry))
            except ProtocolError as error:
                if self._is_open(vhost):
                    left.append(f"{entry}: {error}")
        if left:
            _log.error("definitions.not_undone", count=len(left), entries=left[:NAMED_MAX])

    def _is_open(self, vhost: Vhost) -> bool:
        return self._administration.vhosts.get(vhost.name) is vhost

    def _vhost(self, name: str) -> Vhost:
        """Return a vhost. Raises: ValueError if it was deleted or went offline since the check."""
        vhosts = self._administration.vhosts
        if name not in vhosts:
            Draft(self._administration, vhosts.offline).check_vhost(name)
        return vhosts[name]

    def _comparing(self, tally: ImportTally) -> Generator[None, None, None]:
        """Find the exchanges, queues and bindings that the broker has not, or not as the document says."""
        vhosts = self._administration.vhosts
        for part in TOPOLOGY:
            absent = self._absent[part] = []
            for number, entry in enumerate(getattr(self._document, part)):
                vhost = vhosts.get(entry.vhost)
                if vhost is not None and is_declared(vhost, entry):
                    tally.declared(part, new=False)
                else:
                    absent.append((number, entry))
                    touch(self._touched.setdefault(entry.vhost, Touched()), entry)
                yield

    def _changing_definitions(self) -> Generator[None, None, bool]:
        """Return whether the broker-wide definitions of the document are others than those in force."""
        administration = self._administration
        if administration.importing is not None or any(
            vhost["name"] not in administration.vhosts for vhost in self._document.vhosts
        ):
            return True
        return bool((yield from differing(administration.stored, (yield from self._draft.storing()))))

    def _begin(self, written: dict[str, Any], draft: Draft) -> None:
        """Record on disk that the document is being applied, and add its vhosts; after a crash the next start
        continues.
        """
        for vhost in self._document.vhosts:
            if vhost["name"] not in draft.vhost_names:
                draft.add_vhost(vhost["name"], facts_of(vhost))
                self._made.append(vhost["name"])
        draft.begin_import({**written, MADE: self._made})

    def _give_up(self, draft: Draft) -> None:
        draft.end_import()
        for name in set(draft.vhost_names).intersection(self._made):
            draft.drop_vhost(name)

    def _finish(self, draft: Draft) -> Generator[None, None, None]:
        for name in self._named:
            draft.check_vhost(name)
        draft.end_import()
        return self._putting(draft)

    def _typing_queues(self) -> Generator[None, None, list[QueueEntry]]:
        """Return the queues; one without a type gets the default type that its vhost will have."""
        types = {name: vhost.default_queue_type for name, vhost in self._administration.vhosts.items()}
        types |= {vhost["name"]: default_type(vhost) for vhost in self._document.vhosts}
        typed: list[QueueEntry] = []
        for entry in self._document.queues:
            if entry.type is None and types.get(entry.vhost) is not None:
                arguments = with_default_type(
                    entry.arguments,
                    types.get(entry.vhost),
                    durable=entry.durable,
                    exclusive=False,
                    auto_delete=entry.auto_delete,
                )
                typed.append(replace(entry, arguments=arguments))
            else:
                typed.append(entry)
            yield
        return typed

    # -- the check ----------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        administration, document = self._administration, self._document
        for name, reason in administration.vhosts.offline.items():
            if name in {vhost["name"] for vhost in document.vhosts}:
                raise BadDefinitions(f"Virtual host '{name}' is down: {reason}")
        await run_in_slices(self._checking_vhosts())
        names = dict.fromkeys(row["name"] for row in document.vhosts if row["name"] not in administration.vhosts)
        with _placed("vhosts"):
            administration.check_new_vhosts(administration, names)
        await self._hashed()
        self._draft = Draft(administration, administration.vhosts.offline)
        await run_in_slices(self._putting(self._draft))

    async def _rehearsed(self) -> None:
        """Declare absent entries in copies of the vhosts. Raises: BadDefinitions."""
        async with self._rehearse(self._touched) as copies:
            await self._declare_all("checking", copies.__getitem__, [], self._refused)
        if self._refused and not self._skip_refused:
            first, *others = self._refused.values()
            raise BadDefinitions(f"{first}{f' (and {len(others)} more entries are refused)' if others else ''}")

    def _checking_vhosts(self) -> Generator[None, None, None]:
        administration, document = self._administration, self._document
        offline = administration.vhosts.offline
        self._named = {row["name"] for row in document.vhosts}
        known = {*administration.vhosts, *self._named}
        for part in ("permissions", "topic_permissions", "policies", "parameters", *TOPOLOGY):
            for number, entry in enumerate(getattr(document, part)):
                vhost = entry["vhost"] if isinstance(entry, dict) else entry.vhost
                with _placed(_place(part, number, entry)):
                    if vhost in offline:
                        raise ValueError(f"Virtual host '{vhost}' is down: {offline[vhost]}")
                    if vhost not in known:
                        raise ValueError(f"Virtual host '{vhost}' does not exist")
                self._named.add(vhost)
                yield

    async def _hashed(self) -> None:
        """Replace the plain passwords of the document by hashes. Raises: BadDefinitions for a user that is wrong."""
        users: list[Row] = []
        for number, row in enumerate(self._document.users):
            if number % STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            with _placed(f"users[{number}]"):
                # Hashing is slow on purpose.
                user = await asyncio.to_thread(user_of, row) if row.get("password") else user_of(row)
            users.append(user.to_json())
        self._document = replace(self._document, users=tuple(users))

    def _putting(self, draft: Draft) -> Generator[None, None, None]:
        """Put the broker-wide entries into a draft, in steps of one. Raises: BadDefinitions."""
        for part in IDENTITIES:
            for number, entry in enumerate(getattr(self._document, part)):
                with _placed(_place(part, number, entry)):
                    draft.put_entry(*row_of(part, entry))
                yield

    # -- exchanges, queues, bindings ----------------------------------------------------------------------------------

    async def _declare_all(
        self,
        step: str,
        vhost_of: Callable[[str], Vhost],
        undo: list[tuple[Vhost, Entry]],
        refused: dict[tuple[str, int], str] | None = None,
        tally: ImportTally | None = None,
    ) -> list[str]:
        """Declare everything and return the bindings with a missing source or destination.

        These are skipped, as in RabbitMQ: its 3.x exports leave out internal exchanges and keep their bindings. Refused
        entries are added to `refused`. Raises: BadDefinitions for a refused entry when `refused` is None.
        """
        skipped: list[str] = []
        total = sum(map(len, self._absent.values()))
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
                    try:
                        vhost = vhost_of(entry.vhost)
                        made = declare(vhost, entry) or (part, number) in self._proposed
                        if made:
                            undo.append((vhost, entry))
                        if tally is not None:
                            tally.declared(part, new=made)
                    except Postponed as unanswered:
                        self._proposed.add((part, number))
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
                        else:  # wait for proposals already made, so that they can be undone
                            failed = failed or BadDefinitions(f"{part}[{number}]: {error}")
                with suppress(ChannelError):  # those that are not refused have been made, and are counted
                    await answers([unanswered for _, unanswered in postponed])
                waiting = []
                for (number, entry), answered in postponed:
                    if answered.refusal:
                        failed = failed or BadDefinitions(f"{part}[{number}]: {answered.refusal}")
                    else:
                        waiting.append((number, entry))
            if failed is not None:
                raise failed
        self._tell({"step": step, "done": total, "total": total})
        return skipped

    def _topology(self) -> Iterator[tuple[str, list[tuple[int, Entry]]]]:
        """Yield the absent entries with their numbers, in slices of one part each."""
        for part in TOPOLOGY:
            rest = iter(self._absent[part])
            while piece := list(islice(rest, ENTRIES_AT_ONCE)):
                yield part, [found for found in piece if (part, found[0]) not in self._refused]

    def _keeping(self) -> Generator[None, None, Document]:
        """Return the document without its refused entries, and without those that the broker has."""
        kept: dict[str, list[Entry]] = {part: [] for part in TOPOLOGY}
        for part, entries in self._topology():
            for _, entry in entries:
                kept[part].append(entry)
                yield
        return replace(self._document, **{part: tuple(entries) for part, entries in kept.items()})  # type: ignore[arg-type]


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """Name the place of an entry that is refused. Raises: BadDefinitions."""
    try:
        yield
    except ValueError as error:
        raise BadDefinitions(f"{place}: {error}") from None


def _place(part: str, number: int, entry: Any) -> str:
    """Return the place of an entry. Operator policies are listed among the parameters, so their numbers say nothing."""
    if part == "parameters":
        return f"{part}: {entry['component']} '{entry['name']}'"
    if part == "policies":
        return f"operator policy '{entry['name']}'" if "component" in entry else f"{part}[{number}] '{entry['name']}'"
    return f"{part}[{number}]"
