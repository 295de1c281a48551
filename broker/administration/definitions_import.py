"""Import a definitions document into the running broker, as a whole or not at all, unless refused entries are skipped.

First the document is compared with the broker. Exchanges, queues and bindings that exist with equal properties are
skipped. The others are declared in copies of their vhosts, by the code that serves clients, and the document is applied
only if none is refused. If the broker crashes while it applies the document, the next start finishes the import. All
steps run in slices, between which the loop serves clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

from broker.administration.administration import Administration, ReportProgress
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

CREATED: Final = "made"  # the key of the vhosts that an import in progress created
ENTRIES_AT_ONCE: Final = 50
RETRY_S: Final = 0.1  # the first pause between two attempts; each further one is twice as long
RETRY_MAX_S: Final = 1.0
WRITES: Final = 5  # attempts to store the end of an import on a disk that refuses it
NAMED_MAX: Final = 100  # entries in a log event; the command shows all
NOT_FOUND: Final = 404

_log = get_logger()


class DefinitionsImport:
    """The import of one document.

    Raises: BadDefinitions for a refused entry; then nothing is changed. NodeLost, NotStored or another ValueError if
        the import fails.
    """

    def __init__(
        self,
        document: Document,
        administration: Administration,
        rehearse: Rehearsal,
        report: ReportProgress,
        *,
        skip_refused: bool = False,
        created: Iterable[str] = (),
        at_start: bool = False,
    ) -> None:
        """`skip_refused` skips refused exchanges, queues and bindings instead of refusing the document.

        `created` are the vhosts that this import created before a crash interrupted it. With `at_start`, an import that
        cannot be stored makes the start fail, and the next start finishes it.
        """
        self._document = document
        self._administration = administration
        self._rehearse = rehearse
        self._report = report
        self._draft = Draft(administration, administration.vhosts.offline)
        self._undo: list[tuple[Vhost, Entry]] = []
        self._skip_refused = skip_refused
        self._created = list(created)
        self._at_start = at_start
        self._refused: dict[tuple[str, int], str] = {}
        self._proposed: set[tuple[str, int]] = set()  # entries that every node of a cluster has to declare
        self.skipped: list[str] = []
        self._tally: ImportTally | None = None
        self._absent: dict[str, list[tuple[int, Entry]]] = {}
        self._touched: dict[str, Touched] = {}
        self._vhost_names: set[str] = set()  # all that the document refers to
        self._retry_s = RETRY_S
        self._logged_reasons: set[str] = set()  # logged reasons for another attempt

    async def run(self) -> dict[str, int]:
        """Apply the document, and return how many entries of each kind were not refused, once all are on disk.

        `skipped` then describes the skipped entries and default queue types.
        """
        try:
            changed = await self._administration.alone(self._import)
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
        assert self._tally is not None, "the import has not run"
        return self._tally.fields()

    async def _import(self) -> bool:
        """Import the document, and return whether it changed anything."""
        self._document = replace(self._document, queues=tuple(await run_in_slices(self._queues_with_types())))
        await self._check()
        administration = self._administration
        self._tally = ImportTally(self._document, await run_in_slices(keying_rows(administration.stored)))
        await run_in_slices(self._finding_absent(self._tally))
        changed = any(self._absent.values()) or await run_in_slices(self._changing_definitions())
        if changed:
            await self._rehearse_absent()
            await self._apply(self._tally)
        reasons = enumerate(map(ignored_default_type, self._document.vhosts))
        ignored = [f"vhosts[{number}]: {reason}" for number, reason in reasons if reason is not None]
        self.skipped = [*ignored, *self._refused.values(), *self.skipped]
        await run_in_slices(self._tally.comparing(await run_in_slices(keying_rows(administration.stored))))
        return changed

    async def _apply(self, tally: ImportTally) -> None:
        administration = self._administration
        written = await run_in_slices(writing_document(await run_in_slices(self._trimming())))
        version, present, is_unknown = administration.version, tally.present.copy(), False
        while True:
            try:
                await administration.store(partial(self._begin, written))
                await self._finish_applying(tally)
                break
            except (NodeLost, NotStored) as error:  # try again now; otherwise the next start would have to
                is_unknown = is_unknown or (isinstance(error, OutcomeUnknown) and not self._at_start)
                is_final = isinstance(error, NotWritten) or administration.closed
                if is_final or (administration.version == version and not is_unknown):
                    raise
                await self._pause(error)
                self._undo.clear()
                tally.restart(present)
        await clear_in_slices(*[rows for rows in written.values() if isinstance(rows, list)])

    async def _finish_applying(self, tally: ImportTally) -> None:
        """Declare the absent entries and store the broker-wide ones; undo everything if an entry or a write is refused.

        Raises: BadDefinitions, NodeLost, NotStored, ProtocolError, ValueError.
        """
        administration = self._administration
        try:
            self.skipped = await self._declare_all("importing", self._vhost, self._undo, tally=tally)
            await administration.vhosts.drain()
            await self._store_end()
        except (BadDefinitions, ProtocolError, ValueError) as error:
            if isinstance(error, NotStored) and (self._cannot_retry or not isinstance(error, NotWritten)):
                raise
            await self._undo_all()
            await administration.vhosts.drain()  # refused changes must not reappear after a restart
            await self._store_undone()
            raise

    async def _store_end(self) -> None:
        """Store the end of the import, and retry if the disk refuses it. Raises: NotStored if that does not help."""
        for attempts_left in reversed(range(WRITES)):
            try:
                await self._administration.store(self._finish)
                return
            except NotWritten as error:
                if self._administration.closed and not self._at_start:
                    raise OutcomeUnknown(f"the next start finishes the import: {error}") from error
                if self._at_start or not attempts_left:
                    raise
                await self._pause(error)

    async def _store_undone(self) -> None:
        """Store that the import was undone, now or later. Raises: NotWritten if it cannot be retried."""
        try:
            await self._administration.store(self._abandon)
        except NotWritten:
            if self._cannot_retry:
                raise
            self._administration.store_later(self._abandon)

    @property
    def _cannot_retry(self) -> bool:
        """Whether a failed write cannot be repeated later, because the broker is starting or stopping."""
        return self._at_start or self._administration.closed

    async def _pause(self, error: Exception) -> None:
        """Pause before another attempt, and log each reason once."""
        if (reason := str(error)) not in self._logged_reasons:
            self._logged_reasons.add(reason)
            _log.warning("definitions.import_waits", reason=reason)
        await asyncio.sleep(self._retry_s)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    async def _undo_all(self) -> None:
        """Remove the declared entries, except in deleted vhosts; log those that cannot be removed."""
        remaining: list[str] = []
        for vhost, entry in reversed(self._undo):
            try:
                if self._is_open(vhost):
                    await decided(partial(remove, vhost, entry))
            except ProtocolError as error:
                if self._is_open(vhost):
                    remaining.append(f"{entry}: {error}")
        if remaining:
            _log.error("definitions.not_undone", count=len(remaining), entries=remaining[:NAMED_MAX])

    def _is_open(self, vhost: Vhost) -> bool:
        return self._administration.vhosts.get(vhost.name) is vhost

    def _vhost(self, name: str) -> Vhost:
        """Return a vhost. Raises: ValueError if it was deleted or has gone offline since the check."""
        vhosts = self._administration.vhosts
        if name not in vhosts:
            Draft(self._administration, vhosts.offline).check_vhost(name)
        return vhosts[name]

    def _finding_absent(self, tally: ImportTally) -> Generator[None, None, None]:
        """Find the exchanges, queues and bindings that are missing in the broker or differ from the document."""
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
        """Return whether the document changes the broker-wide definitions, or an earlier import must be ended."""
        administration = self._administration
        if administration.importing is not None or any(
            vhost["name"] not in administration.vhosts for vhost in self._document.vhosts
        ):
            return True
        return bool((yield from differing(administration.stored, (yield from self._draft.storing()))))

    def _begin(self, written: dict[str, Any], draft: Draft) -> None:
        """Record that the document is being applied, so that the next start finishes it, and add its vhosts."""
        for vhost in self._document.vhosts:
            if vhost["name"] not in draft.vhost_names:
                draft.add_vhost(vhost["name"], facts_of(vhost))
                self._created.append(vhost["name"])
        draft.begin_import({**written, CREATED: self._created})

    def _abandon(self, draft: Draft) -> None:
        draft.end_import()
        for name in set(draft.vhost_names).intersection(self._created):
            draft.drop_vhost(name)

    def _finish(self, draft: Draft) -> Generator[None, None, None]:
        for name in self._vhost_names:
            draft.check_vhost(name)
        draft.end_import()
        return self._putting(draft)

    def _queues_with_types(self) -> Generator[None, None, list[QueueEntry]]:
        """Return the queues; a queue without a type gets the default type that its vhost will have."""
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
        await self._hash_passwords()
        self._draft = Draft(administration, administration.vhosts.offline)
        await run_in_slices(self._putting(self._draft))

    async def _rehearse_absent(self) -> None:
        """Declare absent entries in copies of the vhosts. Raises: BadDefinitions."""
        async with self._rehearse(self._touched) as copies:
            await self._declare_all("checking", copies.__getitem__, [], self._refused)
        if self._refused and not self._skip_refused:
            first, *others = self._refused.values()
            raise BadDefinitions(f"{first}{f' (and {len(others)} more entries are refused)' if others else ''}")

    def _checking_vhosts(self) -> Generator[None, None, None]:
        administration, document = self._administration, self._document
        offline = administration.vhosts.offline
        self._vhost_names = {row["name"] for row in document.vhosts}
        known = {*administration.vhosts, *self._vhost_names}
        for part in ("permissions", "topic_permissions", "policies", "parameters", *TOPOLOGY):
            for number, entry in enumerate(getattr(document, part)):
                vhost = entry["vhost"] if isinstance(entry, dict) else entry.vhost
                with _placed(_place(part, number, entry)):
                    if vhost in offline:
                        raise ValueError(f"Virtual host '{vhost}' is down: {offline[vhost]}")
                    if vhost not in known:
                        raise ValueError(f"Virtual host '{vhost}' does not exist")
                self._vhost_names.add(vhost)
                yield

    async def _hash_passwords(self) -> None:
        """Replace the plain passwords of the document by hashes. Raises: BadDefinitions for an invalid user."""
        users: list[Row] = []
        for number, row in enumerate(self._document.users):
            if number % STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            with _placed(f"users[{number}]"):
                # A thread hashes passwords, because that is slow by design.
                user = await asyncio.to_thread(user_of, row) if row.get("password") else user_of(row)
            users.append(user.to_json())
        self._document = replace(self._document, users=tuple(users))

    def _putting(self, draft: Draft) -> Generator[None, None, None]:
        """Put the broker-wide entries into a draft, one per step. Raises: BadDefinitions."""
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
        """Declare the absent entries, and return a line for each binding that lacks its source or destination.

        RabbitMQ skips these too: its 3.x exports omit internal exchanges but keep their bindings. Refused entries are
        added to `refused`, if given. Raises: BadDefinitions for any other refused entry; NodeLost.
        """
        skipped: list[str] = []
        total = sum(map(len, self._absent.values()))
        done = 0
        failed: BadDefinitions | None = None
        for part, entries in self._topology():
            self._report({"step": step, "done": done, "total": total})
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
                        else:  # raised after the answers to earlier proposals, so that those are undone
                            failed = failed or BadDefinitions(f"{part}[{number}]: {error}")
                with suppress(ChannelError):  # refusals are handled below; the next round counts accepted entries
                    await answers([unanswered for _, unanswered in postponed])
                waiting = []
                for (number, entry), answered in postponed:
                    if answered.refusal:
                        failed = failed or BadDefinitions(f"{part}[{number}]: {answered.refusal}")
                    else:
                        waiting.append((number, entry))
            if failed is not None:
                raise failed
        self._report({"step": step, "done": total, "total": total})
        return skipped

    def _topology(self) -> Iterator[tuple[str, list[tuple[int, Entry]]]]:
        """Yield the absent entries that were not refused, with their numbers, in slices of one part each."""
        for part in TOPOLOGY:
            entries = iter(self._absent[part])
            while piece := list(islice(entries, ENTRIES_AT_ONCE)):
                yield part, [one for one in piece if (part, one[0]) not in self._refused]

    def _trimming(self) -> Generator[None, None, Document]:
        """Return the document without the entries that were refused or that the broker already has."""
        kept: dict[str, list[Entry]] = {part: [] for part in TOPOLOGY}
        for part, entries in self._topology():
            for _, entry in entries:
                kept[part].append(entry)
                yield
        return replace(self._document, **{part: tuple(entries) for part, entries in kept.items()})  # type: ignore[arg-type]


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """Turn a ValueError into BadDefinitions with the place of the refused entry."""
    try:
        yield
    except ValueError as error:
        raise BadDefinitions(f"{place}: {error}") from None


def _place(part: str, number: int, entry: Any) -> str:
    """Return the place of an entry. Parameters have no number: operator policies may be listed among them."""
    if part == "parameters":
        return f"{part}: {entry['component']} '{entry['name']}'"
    if part == "policies":
        return f"operator policy '{entry['name']}'" if "component" in entry else f"{part}[{number}] '{entry['name']}'"
    return f"{part}[{number}]"
