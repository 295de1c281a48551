"""Long imports, exports and checkpoints: others are served between slices, and what is equal is left alone."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.administration import definitions, definitions_import, import_tally, rehearsal, slices
from broker.administration.definitions import LocalDefinitions
from broker.administration.definitions_import import ENTRIES_AT_ONCE
from broker.administration.slices import STEPS_AT_ONCE
from broker.cli.control_client import Unanswered
from broker.core.definitions import document, export, json_text, reading
from broker.operations.request import ROWS_AT_ONCE
from broker.parts.data import generate_name
from broker.store.damage import CorruptStore
from tests.in_process import client_of, running_broker, told

MANY = 1500
DOCUMENT: dict[str, Any] = {
    "exchanges": [{"name": f"x{n}", "vhost": "/", "type": "topic", "durable": True} for n in range(MANY // 3)],
    "queues": [{"name": f"q{n}", "vhost": "/", "arguments": {"x-max-length": n + 1}} for n in range(MANY)],
    "bindings": [
        {"source": f"x{n % (MANY // 3)}", "vhost": "/", "destination": f"q{n}", "routing_key": f"a.{n}.#"}
        for n in range(MANY)
    ],
    "vhosts": [{"name": "/"}],
    "policies": [{"vhost": "/", "name": "p", "pattern": "^q", "apply-to": "queues", "definition": {"expires": 60_000}}],
    "parameters": [{"vhost": "/", "component": "shovel", "name": "s", "value": {"a": 1}}],
}
OBJECTS = sum(len(DOCUMENT[part]) for part in ("exchanges", "queues", "bindings"))


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the files in a data folder: each with its inode, because a rewrite may write the same bytes."""
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


class Touches:
    """Counts how many objects are touched in each turn of the loop, by the function that touches one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.all: Counter[str] = Counter()

    def watch(self, module: Any, name: str) -> None:
        """Count the calls of a function of a module."""
        function: Callable[..., Any] = getattr(module, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self._now[name] += 1
            return function(*arguments, **named)

        self._monkeypatch.setattr(module, name, counted)

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        """Count the touches of each turn."""
        self.most.clear()
        self.all.clear()
        ticking = asyncio.create_task(self._tick())
        yield
        ticking.cancel()

    async def _tick(self) -> None:
        while True:
            for name, count in self._now.items():
                self.most[name] = max(self.most[name], count)
            self.all += self._now
            self._now.clear()
            await asyncio.sleep(0)


async def test_a_turn_touches_a_slice_of_a_long_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import reads, compares, copies, writes and declares so much in a turn; an export makes as few rows."""
    touches = Touches(monkeypatch)
    for module, name in (
        (json_text, "_member"), (reading, "Fields"), (definitions_import, "is_declared"), (rehearsal, "_copy_queue"),
        (document, "row_of"), (definitions_import, "declare"), (export, "queue_type"),
    ):  # fmt: skip
        touches.watch(module, name)
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        async with touches.counting():
            await told(broker, "import_definitions", definitions=DOCUMENT)
        assert touches.all["is_declared"] == OBJECTS
        assert touches.all["declare"] == 2 * OBJECTS  # in the copies, and in earnest
        assert min(touches.all["_member"], touches.all["Fields"]) >= OBJECTS
        assert touches.all["_copy_queue"] == 0
        assert touches.all["row_of"] >= OBJECTS
        assert max(touches.most.values()) <= STEPS_AT_ONCE
        # Other bindings of the same queues, which are copied so that they can be bound.
        more = [{**row, "routing_key": "b"} for row in DOCUMENT["bindings"]]
        async with touches.counting():
            await told(broker, "import_definitions", definitions={"bindings": more})
        assert (touches.all["_copy_queue"], touches.all["queue_type"]) == (MANY, 0)
        assert max(touches.most.values()) <= STEPS_AT_ONCE
        async with touches.counting():
            exported = await told(broker, "export_definitions")
        assert touches.all["queue_type"] == len(exported["queues"]) == MANY
        assert touches.most["queue_type"] <= ROWS_AT_ONCE
        await channel.declare_queue("after")


async def test_a_turn_touches_a_slice_of_many_users_and_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import of users, rights and policies goes in slices, and so does a small change beside them."""
    touches = Touches(monkeypatch)
    for module, name in (
        (definitions, "user_of"), (definitions, "same_row"), (definitions, "operator_row"),
        (definitions_import, "row_of"), (definitions_import, "user_of"), (import_tally, "same_row"),
        (import_tally, "row_of"),
    ):  # fmt: skip
        touches.watch(module, name)
    document: dict[str, list[dict[str, object]]] = {
        "users": [{"name": f"u{n}", "password_hash": "", "tags": []} for n in range(MANY)],
        "permissions": [
            {"user": f"u{n}", "vhost": "/", "configure": "", "write": f"u{n}", "read": ".*"} for n in range(MANY)
        ],
        "operator_policies": [
            {"vhost": "/", "name": f"p{n}", "pattern": f"^q{n}", "definition": {"max-length": n + 1}}
            for n in range(MANY // 3)
        ],
    }
    rows = sum(len(part) for part in document.values())
    async with running_broker(tmp_path) as broker:
        async with touches.counting():
            await told(broker, "import_definitions", definitions=document)
        assert touches.all["user_of"] >= 4 * MANY  # read, tried in a draft, stored with another one, and in force
        assert touches.all["row_of"] >= 3 * rows
        assert touches.all["operator_row"] >= MANY // 3
        assert max(touches.most.values()) <= 2 * STEPS_AT_ONCE
        for change in (document, {"users": [{"name": "one", "password_hash": "", "tags": []}]}):
            async with touches.counting():
                await told(broker, "import_definitions", definitions=change)
            assert touches.all["same_row"] >= rows
            assert max(touches.most.values()) <= 2 * STEPS_AT_ONCE


async def test_an_unchanged_document_changes_logs_and_writes_nothing(tmp_path: Path) -> None:
    """A document that the broker has already is answered, and that is all: no file is written and no queue touched."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "import_definitions", definitions=DOCUMENT)
        exported = await told(broker, "export_definitions")
        for document in (DOCUMENT, exported):
            before = (broker.administration.version, broker.entrance.statistics.churn(), contents(tmp_path))
            with capture_logs() as lines:
                answer = await told(broker, "import_definitions", definitions=document)
            assert (broker.administration.version, broker.entrance.statistics.churn(), contents(tmp_path)) == before
            assert lines == []
            assert (answer["made"], answer["changed"], answer["skipped"]) == ({}, {}, [])
            assert answer["present"]["bindings"] == answer["imported"]["bindings"] == MANY
        assert await told(broker, "export_definitions") == exported


@pytest.mark.parametrize(
    ("part", "row", "made", "changed"),
    [
        ("queues", {"name": "new", "vhost": "/"}, {"queues": 1}, {}),
        ("bindings", {"source": "x0", "vhost": "/", "destination": "q9", "routing_key": "k"}, {"bindings": 1}, {}),
        ("parameters", {**DOCUMENT["parameters"][0], "value": {"a": 2}}, {}, {"parameters": 1}),
        ("policies", {**DOCUMENT["policies"][0], "priority": 1}, {}, {"policies": 1}),
    ],
)
async def test_one_difference_is_all_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, row: Any, made: Any, changed: Any
) -> None:
    """Beside a thousand equal entries, only the one that differs is written down before it is made, and made."""
    importing: list[Any] = []
    write = LocalDefinitions.write

    async def watched(store: LocalDefinitions, definitions: Any, expected: int) -> int:
        importing.append(json.loads(json.dumps(definitions.get("importing"))))
        return await write(store, definitions, expected)

    async with running_broker(tmp_path) as broker:
        await told(broker, "import_definitions", definitions=DOCUMENT)
        monkeypatch.setattr(LocalDefinitions, "write", watched)
        document = {**DOCUMENT, part: [row] if part in ("parameters", "policies") else [*DOCUMENT[part], row]}
        answer = await told(broker, "import_definitions", definitions=document)
        assert (answer["made"], answer["changed"]) == (made, changed)
        begun, ended = importing
        assert ended is None
        assert sum(len(begun[kind]) for kind in ("exchanges", "queues", "bindings")) == sum(made.values())
        assert (await told(broker, "export_definitions"))["parameters"] == document["parameters"]


async def test_true_is_not_the_number_one(tmp_path: Path) -> None:
    """A parameter that differs in JSON alone is changed, in memory and for the next export."""
    values = []
    async with running_broker(tmp_path / "data") as broker:
        for value in (1, True, 1.0):
            row = {"vhost": "/", "component": "shovel", "name": "s", "value": {"a": value}}
            await told(broker, "import_definitions", definitions={"parameters": [row]})
            (exported,) = (await told(broker, "export_definitions"))["parameters"]
            values.append(exported["value"]["a"])
    assert list(map(repr, values)) == ["1", "True", "1.0"]


async def test_limits_count_what_an_import_leaves_alone(tmp_path: Path) -> None:
    """Queues that are equal, or not in the document, count towards the limit of their vhost."""
    async with running_broker(tmp_path, limits={"queues_max": 5}) as broker, client_of(broker) as channel:
        for name in ("a", "b", "c"):
            await channel.declare_queue(name, durable=True)
        queues = [{"name": name, "vhost": "/"} for name in ("a", "d", "e", "f")]
        before = broker.entrance.statistics.churn()
        with pytest.raises(Unanswered, match=r"^queues\[3\]: .*queue limit in vhost '/' \(5\) is reached"):
            await told(broker, "import_definitions", definitions={"queues": queues})
        assert broker.entrance.statistics.churn() == before  # none was made and deleted again
        answer = await told(broker, "import_definitions", definitions={"queues": queues}, skip_refused=True)
        assert (answer["made"], answer["present"]) == ({"queues": 2}, {"queues": 1})
        assert [reason.partition(":")[0] for reason in answer["skipped"]] == ["queues[3]"]


async def test_an_export_has_no_binding_without_its_ends(tmp_path: Path) -> None:
    """Queues that are declared while an export is read are not in it, and neither are their bindings."""
    async with running_broker(tmp_path) as broker:
        vhost = broker.vhosts["/"]
        vhost.queues.declare("before", durable=True)
        parts = export.topology_of(vhost)
        queues = [row["name"] for row in parts["queues"]]
        vhost.queues.declare("during", durable=True)
        for name in ("before", "during"):
            vhost.bindings.bind(name, "amq.topic", "k")
        assert queues == [row["destination"] for row in parts["bindings"]] == ["before"]


async def test_the_entries_of_a_document_are_freed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To free the entries of 100,000 objects at once takes 23 ms, also where the import changes nothing."""
    monkeypatch.setattr(slices, "CLEARED_AT_ONCE", 100)
    freed: Counter[int] = Counter()
    turn = 0

    class Seen(document.BindingEntry):
        """An entry that tells when it is freed."""

        def __del__(self) -> None:
            freed[turn] += 1

    monkeypatch.setattr(reading, "BindingEntry", Seen)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with running_broker(tmp_path) as broker:
        counting = asyncio.create_task(count_turns())
        for _ in range(2):
            freed.clear()
            await told(broker, "import_definitions", definitions=DOCUMENT)
            assert sum(freed.values()) == MANY
            assert max(freed.values()) <= 100
        counting.cancel()


async def test_an_exchange_that_is_made_while_its_vhost_is_copied_is_left_out(tmp_path: Path) -> None:
    """A client declares and binds it between two slices of the copy."""
    async with running_broker(tmp_path) as broker:
        vhost = broker.vhosts["/"]
        vhost.queues.declare("q", durable=True)
        rehearse = rehearsal.Rehearsal(broker.vhosts, broker.settings, broker.turn, generate_name)
        async with rehearse({"copy": rehearsal.Touched()}) as copies:
            whole = rehearsal.Touched(bindings=vhost.limits.bindings_max)
            vhost.bindings.bind("q", "amq.direct", "a", {})
            steps = rehearsal.copying(vhost, copies["copy"], whole)
            for _ in vhost.exchanges:
                next(steps)
            vhost.exchanges.declare("late", "direct", durable=True)
            vhost.bindings.bind("q", "late", "a", {})
            list(steps)
            assert copies["copy"].bindings.live.count == 1


@pytest.mark.parametrize("steps", [1, 2])
async def test_a_vhost_that_goes_offline_during_an_import_refuses_it(tmp_path: Path, steps: int) -> None:
    """What was declared in other vhosts is removed again, and no later start repeats the import, also if the vhost is
    still being freed after the last step.
    """
    rows = [{"name": f"q{n}", "vhost": vhost} for vhost in ("/", "v") for n in range(ENTRIES_AT_ONCE)]
    wanted = reading.read_document({"vhosts": [{"name": "w"}], "queues": rows})
    async with running_broker(tmp_path) as broker:
        administration = broker.administration
        await administration.change(lambda draft: draft.add_vhost("v", {}))
        for number in range(1000):
            broker.vhosts["v"].queues.declare(f"old{number}")

        def tell(progress: Mapping[str, Any]) -> None:
            if progress["step"] == "importing" and progress["done"] == steps * ENTRIES_AT_ONCE:
                broker.vhosts.take_offline("v", CorruptStore(tmp_path, 1, 0, "of the test"))

        rehearse = rehearsal.Rehearsal(broker.vhosts, broker.settings, broker.turn, generate_name)
        with pytest.raises((ValueError, reading.BadDefinitions), match="Virtual host 'v' is down"):
            await definitions_import.DefinitionsImport(wanted, administration, rehearse, tell).run()
        assert administration.importing is None
        assert (list(broker.vhosts), list(broker.vhosts["/"].queues)) == (["/"], [])
