"""The effects of damage: the table of docs/store.md, cell by cell, with a broker of two vhosts and real clients.

{bad checksum, unreadable sector, missing segment, unreadable queue declaration} x {found at the start, found while
running} x {refuse, quarantine}.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from broker.cli.control_client import Unanswered, ask
from broker.cli.main import main
from broker.delivery.engine import Engine
from broker.server import BrokerServer
from broker.store.damage import SECTOR_BYTES, CorruptStore, StoreFailed
from tests.deadline import wait_until_async
from tests.fault.sick_files import REASON, SickFiles
from tests.raw_client import RawClient
from tests.raw_talk import (
    Sections,
    connect,
    consume,
    declare,
    mortal_broker,
    numbered,
    page_out,
    publish,
    receive,
    talk,
)

SENT: Final = [b"%06d" % number + b"\x5a" * 50_000 for number in range(60)]  # three segments without zeros
VICTIM: Final = 15  # the damaged message, in the second slot because a start reads the first message
WELL: Final = [b"all is well"]
QUIET: Final = {"connection.lost", "checkpoint.written"}
Policy = Literal["refuse", "quarantine"]
Damage = Callable[[Path, SickFiles], set[int]]


def sections(policy: Policy) -> Sections:
    """Return the settings of a broker."""
    store = {"segment_bytes": 1 << 20, "checkpoint_interval_ms": 3_600_000, "on_corruption": policy}
    return {"store": store, "slots": {"window_messages": 10}}


def logs(folder: Path) -> list[Path]:
    """Return the segments of the damaged vhost."""
    return sorted((folder / "vhosts" / "crm" / "log").glob("*.log"))


def held_in(path: Path) -> dict[int, int]:
    """Return the messages of a segment with the offsets of their bodies."""
    block = path.read_bytes()
    return {number: at for number, body in enumerate(SENT) if (at := block.find(body)) >= 0}


def flip(path: Path, offset: int) -> None:
    """Flip a bit of a file in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def bad_checksum(folder: Path, _files: SickFiles) -> set[int]:
    """Flip a bit in a message; return the damaged messages."""
    path = logs(folder)[0]
    flip(path, held_in(path)[VICTIM] + 20_000)
    return {VICTIM}


def bad_sector(folder: Path, files: SickFiles) -> set[int]:
    """Make one sector of a message unreadable."""
    path = logs(folder)[0]
    files.bad[path] = {(held_in(path)[VICTIM] + 20_000) // SECTOR_BYTES}
    return {VICTIM}


def missing_segment(folder: Path, _files: SickFiles) -> set[int]:
    """Remove a segment in the middle of the log."""
    path = logs(folder)[1]
    lost = set(held_in(path))
    assert 10 < len(lost) < 30
    path.unlink()
    return lost


DAMAGES: Final = [bad_checksum, bad_sector, missing_segment]


async def prepare(folder: Path, *, clean: bool, files: SickFiles | None = None) -> None:
    """Leave a data folder with two vhosts that hold messages; the vhost to be damaged has a policy and rights."""
    async with mortal_broker(folder, sections("refuse"), files=files, crash=not clean) as broker:
        broker._timers.close()  # no checkpoint before the end: the next start reads the damaged record
        await broker.administration.change(lambda draft: draft.add_vhost("crm", {"description": "customers"}))
        await broker.administration.change(lambda draft: draft.permissions.set("guest", "crm", ".*", ".*", ".*"))
        for name, pattern, length in (("long", "^q$", 1000), ("short", "^recovered", 10)):
            definition = {"max-length": length}
            await asyncio.to_thread(
                ask, folder, "set_policy", vhost="crm", name=name, pattern=pattern, definition=definition
            )
        with await talk(broker, connect, broker) as well:
            await talk(broker, lambda: declare(well, "q", durable=True))
            await talk(broker, lambda: publish(well, "q", WELL))
        with await talk(broker, lambda: connect(broker, vhost="crm")) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            for body in SENT:  # one batch each
                await talk(broker, publish, client, "q", [body])


def take_all(client: RawClient, count: int) -> list[int]:
    """Return the numbers of the messages delivered to a consumer that acks nothing."""
    client.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"), commands.Basic.ConsumeOk)
    found = [int(body[:6]) for _, body in receive(client, count)]
    assert client.call(1, commands.Basic.Cancel(consumer_tag="c"), commands.Basic.CancelOk)
    return found


async def expect_rest(broker: BrokerServer, lost: set[int]) -> None:
    """Assert that two consumers in turn each get every message but the lost ones, in order."""
    rest = [number for number in range(len(SENT)) if number not in lost]
    for _ in range(2):
        with await talk(broker, lambda: connect(broker, vhost="crm")) as client:
            assert await talk(broker, take_all, client, len(rest)) == rest
            passive = commands.Queue.Declare(queue="q", passive=True)
            declared = await talk(broker, client.call, 1, passive, commands.Queue.DeclareOk)
            assert declared.message_count == 0  # no other message is left


def alarming(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the warnings and errors among events, except those of clients that just disconnected."""
    return [one["event"] for one in events if one["log_level"] != "info" and one["event"] not in QUIET]


async def expect_well(broker: BrokerServer) -> None:
    """Check that the other vhost works: it still has its message and accepts another one."""
    with await talk(broker, connect, broker) as client:
        assert await talk(broker, consume, client, "q", 1) == WELL
        await talk(broker, lambda: publish(client, "q", WELL))


async def expect_down(broker: BrokerServer) -> str:
    """Check that the damaged vhost is refused with RabbitMQ's code and text and keeps its definitions."""

    def refused() -> str:
        client = RawClient("127.0.0.1", broker.listener.port)
        with client:
            client.greet()
            client.authenticate()
            tune = client.expect(commands.Connection.Tune, 0)
            client.method(0, commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
            client.method(0, commands.Connection.Open(virtual_host="crm"))
            return client.expect_connection_close(541).reply_text

    text = await talk(broker, refused)
    assert text == "INTERNAL_ERROR - access to vhost 'crm' refused for user 'guest': vhost 'crm' is down"

    def asked(verb: str, **arguments: Any) -> Any:
        return ask(Path(broker.settings.server.data_dir), verb, **arguments)

    ((row,), facts) = await asyncio.to_thread(
        lambda: ([one for one in asked("list_vhosts") if one["state"] == "down"], asked("status"))
    )
    assert (row["name"], row["description"]) == ("crm", "customers")
    assert facts["vhosts_down"] == [{"vhost": "crm", "reason": row["reason"]}]
    document = broker.administration.document()
    assert {"crm", "/"} == {vhost["name"] for vhost in document["vhosts"]}
    assert {policy["name"] for policy in document["policies"]} == {"long", "short"}
    assert "crm" in [right["vhost"] for right in document["permissions"]]
    return str(row["reason"])


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
async def test_found_at_the_start_refuse(tmp_path: Path, damage: Damage) -> None:
    """The vhost is offline and the other one works; nothing is changed, so a repaired file is complete again."""
    await prepare(tmp_path, clean=False)
    before = {path: path.read_bytes() for path in logs(tmp_path)}
    files = SickFiles()
    damage(tmp_path, files)
    for _ in range(2):  # a second start is refused like the first one
        with capture_logs() as events:
            async with mortal_broker(tmp_path, sections("refuse"), files=files) as broker:
                reason = await expect_down(broker)
                assert "segment 1" in reason or "segment 2" in reason
                await expect_well(broker)
                # A change writes all definitions.
                await broker.administration.change(lambda draft: draft.users.add("other", "secret"))
        (event,) = [event for event in events if event["event"] == "vhost.offline"]
        assert (event["vhost"], event["reason"]) == ("crm", reason)
        await remove_user(tmp_path, files)
    files.bad.clear()
    for path, block in before.items():
        path.write_bytes(block)
    async with mortal_broker(tmp_path, sections("refuse"), files=files) as broker:
        assert {policy.name for policy in broker.vhosts["crm"].policies.list()} == {"long", "short"}
        await expect_rest(broker, set())


async def remove_user(folder: Path, files: SickFiles) -> None:
    """Undo the change of the previous broker."""
    async with mortal_broker(folder, sections("refuse"), files=files) as broker:
        await broker.administration.change(lambda draft: draft.users.delete("other"))


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
async def test_found_at_the_start_quarantine(tmp_path: Path, damage: Damage) -> None:
    """Damaged messages are skipped and reported; every other message is delivered, and the next start finds nothing."""
    await prepare(tmp_path, clean=False)
    files = SickFiles()
    lost = damage(tmp_path, files)
    with capture_logs() as events:
        async with mortal_broker(tmp_path, sections("quarantine"), files=files) as broker:
            await expect_well(broker)
            await expect_rest(broker, lost)
    assert {"store.quarantined"} <= {event["event"] for event in events}
    with capture_logs() as events:
        async with mortal_broker(tmp_path, sections("quarantine"), files=files) as broker:
            await expect_rest(broker, lost)
    assert not alarming(events)


@pytest.mark.fault
@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
async def test_an_unreadable_sector_in_the_last_batch_is_no_torn_tail(tmp_path: Path, policy: Policy) -> None:
    """An unreadable sector is not cut as a torn tail, although no later record proves that its batch was synced."""
    async with mortal_broker(tmp_path, sections("refuse"), crash=True) as broker:
        broker._timers.close()
        await broker.administration.change(lambda draft: draft.add_vhost("crm", {}))
        await broker.administration.change(lambda draft: draft.permissions.set("guest", "crm", ".*", ".*", ".*"))
        with await talk(broker, lambda: connect(broker, vhost="crm")) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            for body in SENT[:-40]:
                await talk(broker, publish, client, "q", [body])
    files = SickFiles()
    path = logs(tmp_path)[0]
    last = len(SENT) - 41
    files.bad[path] = {(held_in(path)[last] + 20_000) // SECTOR_BYTES}
    async with mortal_broker(tmp_path, sections(policy), files=files) as broker:
        if policy == "refuse":
            assert "Input/output error" in broker.vhosts.offline["crm"]
        else:
            assert broker.vhosts["crm"].queues["q"].ready == last


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
async def test_found_while_running_refuse(tmp_path: Path, damage: Damage) -> None:
    """A consumer reads the damage: its vhost goes offline with its connections, and the other one keeps working."""
    await prepare(tmp_path, clean=True)
    files = SickFiles()
    with capture_logs() as events:
        async with mortal_broker(tmp_path, sections("refuse"), files=files) as broker:
            with await talk(broker, lambda: connect(broker, vhost="crm")) as client:
                damage(tmp_path, files)

                def meet() -> str:
                    client.method(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
                    close = client.skip_to(commands.Connection.Close, 0)
                    client.method(0, commands.Connection.CloseOk())
                    assert close.reply_code == 320
                    return close.reply_text

                assert await talk(broker, meet) == "CONNECTION_FORCED - vhost 'crm' is down"
            reason = await expect_down(broker)
            await expect_well(broker)
            await gone(broker)
            await expect_down(broker)
    assert [event["reason"] for event in events if event["event"] == "vhost.offline"] == [reason]


@pytest.mark.fault
async def test_an_offline_vhost_leaves_memory(tmp_path: Path) -> None:
    """The messages of an offline vhost leave memory, while its policies stay."""

    def vhosts() -> list[object]:
        return [one for one in gc.get_objects() if type(one).__name__ == "Vhost" and one.name == "crm"]

    of_other_tests = vhosts()  # a failed test, say, keeps its broker
    await prepare(tmp_path, clean=True)
    files = SickFiles()
    async with mortal_broker(tmp_path, sections("refuse"), files=files) as broker:
        with await talk(broker, lambda: connect(broker, vhost="crm")) as client:
            bad_checksum(tmp_path, files)

            def meet() -> None:
                client.method(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
                client.skip_to(commands.Connection.Close, 0)
                client.method(0, commands.Connection.CloseOk())

            await talk(broker, meet)
        await gone(broker)
        await expect_well(broker)  # event-loop turns after which none of it is left

        async def forgotten() -> bool:
            gc.collect()
            return all(any(one is other for other in of_other_tests) for one in vhosts())

        await wait_until_async(forgotten, "the end of the vhost")


class FinalFiles(SickFiles):
    """Files of a failing disk, which from a moment on cannot be removed."""

    stays = False

    def remove(self, path: Path) -> None:
        """Remove a file, or refuse to."""
        if self.stays:
            raise StoreFailed(path, REASON)
        super().remove(path)


@pytest.mark.fault
async def test_freeing_an_offline_vhost_changes_no_file(tmp_path: Path) -> None:
    """Its queues are freed, not deleted: their files stay, and a start on a repaired disk has every durable message."""
    await prepare(tmp_path, clean=True)
    files = FinalFiles()
    async with mortal_broker(tmp_path, sections("refuse"), files=files, crash=True) as broker:
        with await talk(broker, lambda: connect(broker, vhost="crm")) as client:
            await talk(broker, lambda: declare(client, "transient"))
            await talk(broker, lambda: publish(client, "transient", numbered(300), mode=1))
            page_out(broker, "transient", "crm")
            bad_sector(tmp_path, files)
            files.stays = True
            engine = broker.engines["crm"]
            client.method(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
            await gone(broker)
            await expect_well(broker)
            assert engine not in broker.turn.engines  # no turn writes that its queues are deleted
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        assert broker.vhosts["crm"].queues["q"].ready == len(SENT)


async def gone(broker: BrokerServer) -> None:
    """Return when the engine of the offline vhost has ended."""
    await wait_until_async(lambda: "crm" not in broker.engines, "the end of the engine")


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
async def test_found_while_running_quarantine(tmp_path: Path, damage: Damage) -> None:
    """Consumers get every readable message; the unreadable ones are reported and leave the counts."""
    await prepare(tmp_path, clean=True)
    files = SickFiles()
    with capture_logs() as events:
        async with mortal_broker(tmp_path, sections("quarantine"), files=files) as broker:
            lost = damage(tmp_path, files)
            await expect_rest(broker, lost)
            await expect_well(broker)
    told = [event["message"] - 1 for event in events if event["event"] == "store.message_unreadable"]
    assert sorted(told) == sorted(lost)
    assert sum(event["count"] for event in events if event["event"] == "messages.lost") == len(lost)


@pytest.mark.fault
async def test_an_unacked_message_that_cannot_be_read_is_not_requeued(tmp_path: Path) -> None:
    """With quarantine, an unacked message that became unreadable after paging is lost, its neighbours are not."""
    await prepare(tmp_path, clean=True)
    held = VICTIM + 2
    with capture_logs() as events:
        async with mortal_broker(tmp_path, sections("quarantine")) as broker:
            engine = broker.engines["crm"]
            with await talk(broker, lambda: connect(broker, vhost="crm")) as client:
                with await talk(broker, lambda: connect(broker, vhost="crm")) as holder:
                    await talk(broker, holder.call, 1, commands.Basic.Qos(prefetch_count=held), commands.Basic.QosOk)
                    assert await talk(broker, take_all, holder, held) == list(range(held))
                    slots = engine.vhost.queues["q"].level.manager.slots.values()
                    slot = next(slot for slot in slots if slot.first <= VICTIM + 1 < slot.end)
                    engine.pager._page_out(engine.pager._resident[slot])
                    assert slot.contents is None
                    bad_checksum(tmp_path, SickFiles())
                    got = await talk(broker, client.call, 1, commands.Basic.Get(queue="q"), commands.Basic.GetOk)
                    assert got.message_count == len(SENT) - held - 1
                    await talk(broker, client.expect_content, 1)
                rest = [number for number in range(len(SENT)) if number not in (VICTIM, held)]
                assert await talk(broker, take_all, client, len(rest)) == rest
    assert [event["count"] for event in events if event["event"] == "messages.lost"] == [1]


# ---- an unreadable declaration ---------------------------------------------------------------------------------------


def lose_declaration(folder: Path) -> None:
    """Flip a bit in the record that declares the queue."""
    path = logs(folder)[0]
    flip(path, path.read_bytes().index(b'"change":"queue_declared","name":"q"') + 12)


@pytest.mark.fault
@pytest.mark.slow
async def test_a_declaration_found_at_the_start_refuse(tmp_path: Path) -> None:
    """The vhost is offline and the error names the place of the damage."""
    await prepare(tmp_path, clean=False)
    lose_declaration(tmp_path)
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        assert "segment 1, offset" in await expect_down(broker)
        await expect_well(broker)


@pytest.mark.fault
@pytest.mark.slow
async def test_a_declaration_found_at_the_start_quarantine(tmp_path: Path) -> None:
    """The messages stay in a queue of another name, are reported with their count, and a command moves them back."""
    await prepare(tmp_path, clean=False)
    lose_declaration(tmp_path)
    with capture_logs() as events:
        async with mortal_broker(tmp_path, sections("quarantine")) as broker:
            (name,) = [name for name in broker.vhosts["crm"].queues if name.startswith("recovered.")]
            facts = await asyncio.to_thread(ask, tmp_path, "status")
            assert facts["queues_recovered"] == [{"vhost": "crm", "queue": name, "messages": len(SENT)}]
            assert broker.vhosts["crm"].queues[name].policy is None
    (event,) = [event for event in events if event["event"] == "queue.recovered"]
    assert (event["vhost"], event["queue"], event["messages"]) == ("crm", name, len(SENT))
    async with mortal_broker(tmp_path, sections("refuse"), crash=True) as broker:  # it is now an ordinary queue
        with await talk(broker, lambda: connect(broker, vhost="crm")) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        command = ["move", name, "--to", "q", "--vhost", "crm", "--data-dir", str(tmp_path)]
        assert await asyncio.to_thread(main, command) == 0
        facts = await asyncio.to_thread(ask, tmp_path, "status")
        assert facts["queues_recovered"] == [{"vhost": "crm", "queue": name, "messages": 0}]
        await expect_rest(broker, set())


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
async def test_a_declaration_while_running(tmp_path: Path, policy: Policy) -> None:
    """A running broker has its queues in memory: damage to a declaration goes unnoticed; a checkpoint repairs it."""
    await prepare(tmp_path, clean=False)
    with capture_logs() as events:
        async with mortal_broker(tmp_path, sections(policy)) as broker:
            lose_declaration(tmp_path)
            await expect_rest(broker, set())
    async with mortal_broker(tmp_path, sections(policy)) as broker:
        await expect_rest(broker, set())
        await expect_well(broker)
    assert not alarming(events)


# -- operations on an offline vhost ----------------------------------------------------------------------------------


@pytest.mark.fault
async def test_commands_about_a_vhost_that_is_down(tmp_path: Path) -> None:
    """Changes of an offline vhost, imports included, are refused with the reason; deleting it is allowed and final."""
    await prepare(tmp_path, clean=False)
    bad_checksum(tmp_path, SickFiles())

    def refused(verb: str, **arguments: Any) -> str:
        with pytest.raises(Unanswered) as caught:
            ask(tmp_path, verb, **arguments)
        return str(caught.value)

    def converse() -> None:
        for verb, arguments in (
            ("list_queues", {}),
            ("set_policy", {"name": "p", "pattern": "x", "definition": {"max-length": 1}}),
            ("set_permission", {"user": "guest", "configure": "", "write": "", "read": ""}),
            ("peek", {"queue": "q"}),
        ):
            text = refused(verb, vhost="crm", **arguments)
            assert "is down: " in text, f"{verb}: {text}"
            assert "the checksum is wrong" in text, f"{verb}: {text}"
        assert "is down: " in refused("import_definitions", definitions={"vhosts": [{"name": "crm"}, {"name": "new"}]})
        policy = {"vhost": "crm", "name": "p", "pattern": "x", "definition": {"max-length": 1}}
        assert "is down: " in refused("import_definitions", definitions={"policies": [policy]})
        ask(tmp_path, "delete_vhost", name="crm")

    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        assert [row["name"] for row in await asyncio.to_thread(ask, tmp_path, "list_vhosts")] == ["/", "crm"]
        await asyncio.to_thread(converse)
        assert [row["name"] for row in await asyncio.to_thread(ask, tmp_path, "list_vhosts")] == ["/"]
        await expect_well(broker)
    assert not (tmp_path / "vhosts" / "crm").exists()
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        assert list(broker.vhosts) == ["/"]


@pytest.mark.fault
async def test_a_vhost_that_is_down_is_deleted_with_its_slot_files(tmp_path: Path) -> None:
    """Nothing of its taps is left for a new vhost of the same name."""
    async with mortal_broker(tmp_path, sections("refuse"), crash=True) as broker:
        broker._timers.close()
        await broker.administration.change(lambda draft: draft.add_vhost("crm", {}))
        await broker.administration.change(lambda draft: draft.permissions.set("guest", "crm", ".*", ".*", ".*"))
        await broker.taps.add("crm", "", "q", name="t", cursors=["reader"])
        with await talk(broker, lambda: connect(broker, vhost="crm")) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            for body in SENT[: VICTIM + 3]:
                await talk(broker, publish, client, "q", [body])
        await broker.taps.seal()
        assert broker.taps.view.seals
    bad_checksum(tmp_path, SickFiles())
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        assert list(broker.vhosts.offline) == ["crm"]
        assert broker.taps.view.seals
        assert broker.taps.view.cursors
        await broker.administration.change(lambda draft: draft.drop_vhost("crm"))
        assert not broker.taps.view.seals
        assert not broker.taps.view.cursors
        assert not list((tmp_path / "slots").glob("*.slot"))


@pytest.mark.fault
async def test_damage_in_a_vhost_that_is_being_deleted_ends_nobody(tmp_path: Path) -> None:
    """A read that is in progress finds damage in a vhost that is being deleted, and ends nothing."""
    await prepare(tmp_path, clean=True)
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        engine = broker.engines["crm"]
        (queue,) = engine.vhost.queues.values()
        slot = next(slot for slot in queue.level.manager.slots.values() if slot.first <= VICTIM + 1 < slot.end)
        bad_checksum(tmp_path, SickFiles())
        engine.reader.read(queue.level, slot, lambda: None)
        broker.vhosts.hide("crm")
        await wait_until_async(idle(engine), "the end of the read")
        await broker.vhosts.remove("crm")
        await expect_well(broker)


def idle(engine: Engine) -> Callable[[], Awaitable[bool]]:
    """Return a check for whether an engine has no read in progress."""

    async def reads_nothing() -> bool:
        return not engine.reader.busy

    return reads_nothing


@pytest.mark.fault
async def test_a_look_at_a_damaged_message_is_answered(tmp_path: Path) -> None:
    """A peek that finds damage reports the place; it removes no message and takes no vhost offline."""
    await prepare(tmp_path, clean=True)
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        bad_checksum(tmp_path, SickFiles())

        def look() -> str:
            with pytest.raises(Unanswered) as caught:
                ask(tmp_path, "peek", vhost="crm", queue="q", count=30)
            return str(caught.value)

        assert f"message {VICTIM + 1} of queue 1 is missing" in await asyncio.to_thread(look)
        assert list(broker.vhosts) == ["/", "crm"]


@pytest.mark.fault
@pytest.mark.parametrize(("verb", "arguments"), [("move", {"to": "other"}), ("get", {"count": 30})])
async def test_a_command_that_meets_damage_ends(tmp_path: Path, verb: str, arguments: dict[str, Any]) -> None:
    """A command that takes messages and finds damage takes the vhost offline, and its client gets the reason."""
    await prepare(tmp_path, clean=True)
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        bad_checksum(tmp_path, SickFiles())
        broker.vhosts["crm"].queues.declare("other", durable=True)

        def command() -> str:
            with pytest.raises(Unanswered) as caught:
                ask(tmp_path, verb, vhost="crm", queue="q", silence_s=10, **arguments)
            return str(caught.value)

        assert f"message {VICTIM + 1} of queue 1 is missing" in await asyncio.to_thread(command)
        assert list(broker.vhosts) == ["/"]
        await expect_well(broker)


# ---- the only vhost --------------------------------------------------------------------------------------------------


@pytest.mark.fault
async def test_a_broker_without_a_vhost_does_not_start(tmp_path: Path) -> None:
    """A broker whose only vhost is damaged does not start."""
    async with mortal_broker(tmp_path, sections("refuse"), crash=True) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, publish, client, "q", SENT[:3])
            await talk(broker, publish, client, "q", SENT[:3])
    (path,) = (tmp_path / "vhosts" / "%2F" / "log").glob("*.log")
    flip(path, path.read_bytes().index(SENT[0]))
    with pytest.raises(CorruptStore, match="the checksum is wrong"):
        async with mortal_broker(tmp_path, sections("refuse")):
            raise AssertionError("it started")


@pytest.mark.fault
async def test_a_broker_ends_with_its_last_vhost(tmp_path: Path) -> None:
    """Damage that a running broker finds in its only vhost ends the broker."""
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, publish, client, "q", SENT[:3])
    (path, *_) = sorted((tmp_path / "vhosts" / "%2F" / "log").glob("*.log"))
    flip(path, path.read_bytes().index(SENT[0]))
    async with mortal_broker(tmp_path, sections("refuse")) as broker:
        assert isinstance(await broker.wait_failed(), CorruptStore)  # it reads the head of each queue
