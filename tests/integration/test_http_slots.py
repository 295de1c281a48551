"""Slots, cursors and snapshots over HTTP: the bytes of the files, for users who may read them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.server import BrokerServer
from broker.slot_files.slot_view import open_slot
from broker.testing import Broker as InMemory
from tests.deadline import DEADLINE_S, wait_until_async
from tests.http_talk import Web, ask, request, statuses
from tests.in_process import client_of, running_broker

HTTP: dict[str, Any] = {"enabled": True, "port": 0}
ALICE = ("alice", "wonderland")
TAP = "queue 'amq.tap.a' in vhost '/'"


@asynccontextmanager
async def tapped_broker(folder: Path, *taps: str, **sections: dict[str, Any]) -> AsyncIterator[BrokerServer]:
    """Yield a broker with taps on amq.topic, each for the keys of its name, that seal only on request."""
    http = {**HTTP, **sections.pop("http", {})}
    given = {"window_ms": 3_600_000, **sections.pop("taps", {})}
    async with running_broker(folder, None, http=http, taps=given, **sections) as broker:
        for tap in taps:
            await broker.taps.add("/", "amq.topic", f"{tap}.#", name=tap)
        yield broker


async def publish(broker: BrokerServer, key: str, *bodies: bytes) -> None:
    """Publish and wait for the confirms."""
    async with client_of(broker) as channel:
        exchange = await channel.get_exchange("amq.topic")
        for body in bodies:
            await exchange.publish(aio_pika.Message(body, delivery_mode=2), key)


async def slot_of(broker: BrokerServer, tap: str, *bodies: bytes) -> int:
    """Seal published messages into a slot file of a tap, and return its seal."""
    await publish(broker, f"{tap}.key", *bodies)
    return await broker.taps.seal("/", tap)


def reader(broker: BrokerServer, read: str, tags: tuple[str, ...] = ()) -> None:
    """Create alice, who may read matching resources."""
    broker.administration.users.add(*ALICE, tags)
    broker.administration.permissions.set("alice", "/", "", "", read)


def open_slot_files() -> list[str]:
    """Return the slot files that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.endswith(".slot"):
            found.append(target)
    return found


async def test_a_slot_is_the_bytes_of_its_file(tmp_path: Path) -> None:
    """A slot is sent whole, in part, or not at all to a client that has it; length and ETag are the seal's."""
    async with tapped_broker(tmp_path / "data", "a") as broker:
        seal = await slot_of(broker, "a", *[b"%d" % number * 1000 for number in range(500)])
        file = broker.taps.slot_path(seal).read_bytes()
        (row,) = (await ask(broker, "GET", "/v1/seals")).json["seals"]
        web = Web(broker.manage.port())
        path = f"/v1/slots/{seal}"
        whole = await web.later("GET", path)
        assert (whole.status, whole.body, len(file)) == (200, file, row["bytes"])
        tag = f'"{row["crc"]:08x}"'
        assert whole.headers["etag"] == tag
        assert [one.body for one in open_slot(whole.body)][7] == b"7" * 1000
        head = await web.later("HEAD", path)
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(file)))
        part = await web.later("GET", path, Range="bytes=1000-1999", If_Range=tag)
        assert (part.status, part.body) == (206, file[1000:2000])
        assert part.headers["content-range"] == f"bytes 1000-1999/{len(file)}"
        end = await web.later("GET", path, Range="bytes=-64")
        assert (end.status, end.body) == (206, file[-64:])
        assert (await web.later("GET", path, Range="bytes=1000-1999", If_Range='"0"')).body == file
        beyond = await web.later("GET", path, Range=f"bytes={len(file)}-")
        assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{len(file)}")
        known = await web.later("GET", path, If_None_Match=tag)
        assert (known.status, known.body) == (304, b"")
        web.close()
        assert open_slot_files() == []


async def test_a_slot_that_is_fetched_is_read(tmp_path: Path) -> None:
    """The broker writes the slot files of a tap sooner while someone fetches them, and of no other tap."""
    async with tapped_broker(tmp_path / "data", "a", "b") as broker:
        await slot_of(broker, "b", b"1")
        seal = await slot_of(broker, "a", b"1")
        assert broker.taps._writer._windows_ms == {}
        await ask(broker, "GET", f"/v1/slots/{seal}")
        assert {queue.tap: ms for queue, ms in broker.taps._writer._windows_ms.items()} == {"a": 0}


async def test_seals_are_listed_page_by_page(tmp_path: Path) -> None:
    """Seals are listed from a given seal on, in pages, for one tap or for all; the store says whose they are."""
    async with tapped_broker(tmp_path / "data", "a", "b") as broker:
        for number in range(3):
            await slot_of(broker, "a", b"%d" % number)
            await slot_of(broker, "b", b"%d" % number)
        store = (await ask(broker, "GET", "/v1/store")).json
        assert (store["last_seal"], len(store["store"])) == (6, 32)
        assert store["incarnation"] == broker.incarnation

        async def page(query: str) -> tuple[list[int], bool]:
            said = (await ask(broker, "GET", f"/v1/seals?{query}")).json
            assert (said["store"], said["last_seal"]) == (store["store"], 6)
            return [seal["seal"] for seal in said["seals"]], said["more"]

        assert await page("") == ([1, 2, 3, 4, 5, 6], False)
        assert await page("limit=4") == ([1, 2, 3, 4], True)
        assert await page("after=4&limit=2") == ([5, 6], False)
        assert await page("after=6") == ([], False)
        assert await page("vhost=%2F&tap=b&after=2") == ([4, 6], False)
        assert await page("vhost=%2F&tap=b&limit=2") == ([2, 4], True)
        assert await page("vhost=other") == ([], False)
        assert await page("limit=0") == ([], True)


async def test_a_user_sees_the_taps_that_they_may_read(tmp_path: Path) -> None:
    """403 names the resource; lists leave out taps that the user may not read."""
    async with tapped_broker(tmp_path / "data", "a", "b") as broker:
        seal_a, seal_b = await slot_of(broker, "a", b"A"), await slot_of(broker, "b", b"B")
        reader(broker, r"^amq\.tap\.b$")
        said = await ask(broker, "GET", f"/v1/slots/{seal_a}", user=ALICE)
        assert said.refusal == (403, "access_refused", f"access to {TAP} refused for user 'alice'")
        assert (await ask(broker, "GET", "/v1/seals?vhost=%2F&tap=a", user=ALICE)).status == 403
        assert (await ask(broker, "POST", "/v1/seal", {"tap": "a"}, user=ALICE)).status == 403
        assert (await ask(broker, "PUT", "/v1/cursors/c", {"tap": "a", "seal": 0}, user=ALICE)).status == 403
        assert (await ask(broker, "DELETE", "/v1/cursors/c?tap=a", user=ALICE)).status == 403
        everything = await ask(broker, "POST", "/v1/seal", {}, user=ALICE)
        assert everything.refusal[2].startswith("access to all taps refused for user 'alice'")
        assert (await ask(broker, "GET", f"/v1/slots/{seal_b}", user=ALICE)).status == 200
        await broker.taps.cursors.set("one", "/", "a", 0)
        await broker.taps.cursors.set("one", "/", "b", 0)
        listed = (await ask(broker, "GET", "/v1/seals", user=ALICE)).json
        assert [row["seal"] for row in listed["seals"]] == [seal_b]
        assert listed["partial"]
        assert not (await ask(broker, "GET", "/v1/seals")).json["partial"]
        assert [row["tap"] for row in listed["cursors"]] == ["b"]
        assert [row["name"] for row in (await ask(broker, "GET", "/v1/taps", user=ALICE)).json["taps"]] == ["b"]


async def test_a_cursor_holds_and_lets_go(tmp_path: Path) -> None:
    """A cursor is created, moved and removed over HTTP; slots that it has passed are released and reported."""
    async with tapped_broker(tmp_path / "data", "a") as broker:
        made = await ask(broker, "PUT", "/v1/cursors/my%2Fjob", {"vhost": "/", "tap": "a", "seal": 0})
        assert (made.status, made.body) == (204, b"")
        first, second = await slot_of(broker, "a", b"1"), await slot_of(broker, "a", b"2")
        assert (await ask(broker, "PUT", "/v1/cursors/my%2Fjob", {"tap": "a", "seal": first})).status == 204
        (cursor,) = (await ask(broker, "GET", "/v1/seals")).json["cursors"]
        assert (cursor["name"], cursor["seal"]) == ("my/job", first)

        async def released() -> bool:
            return (await ask(broker, "GET", f"/v1/slots/{first}")).status == 404

        await wait_until_async(released, "what the cursor has passed goes")
        gone = await ask(broker, "GET", f"/v1/slots/{first}")
        assert gone.refusal[2] == f"slot {first} was released"
        assert (await ask(broker, "GET", "/v1/slots/99")).refusal[2] == "no slot 99 was sealed yet"
        listed = (await ask(broker, "GET", "/v1/seals")).json
        assert [row["seal"] for row in listed["seals"]] == [second]
        assert [row["seal"] for row in listed["released"]] == [first]
        assert [row["seal"] for row in listed["gaps"]] == [first]  # slots that a reader from the beginning cannot get
        assert (await ask(broker, "DELETE", "/v1/cursors/my%2Fjob?vhost=%2F&tap=a")).status == 204
        assert (await ask(broker, "DELETE", "/v1/cursors/my%2Fjob?tap=a")).status == 404


async def test_what_a_cursor_cannot_be_is_refused(tmp_path: Path) -> None:
    """409 for a future seal, 404 for an unknown tap, 400 for a missing or malformed seal."""
    async with tapped_broker(tmp_path / "data", "a") as broker:
        refused = {
            "ahead": ({"tap": "a", "seal": 1}, 409),
            "no tap": ({"tap": "b", "seal": 0}, 404),
            "no vhost": ({"tap": "a", "vhost": "x", "seal": 0}, 403),
            "no seal": ({"tap": "a"}, 400),
            "wrong seal": ({"tap": "a", "seal": "1"}, 400),
            "no number": ({"tap": "a", "seal": True}, 400),
            "unknown field": ({"tap": "a", "seal": 0, "name": "c"}, 400),
        }
        for name, (body, status) in refused.items():
            said = await ask(broker, "PUT", "/v1/cursors/c", body)
            assert said.refusal[0] == status, name
        assert broker.taps.view.cursors == []


async def test_sealing_over_http_waits_for_the_file(tmp_path: Path) -> None:
    """Sealing answers once everything confirmed before is in a slot file."""
    async with tapped_broker(tmp_path / "data", "a", "b") as broker:
        await publish(broker, "a.key", b"1", b"2")
        await publish(broker, "b.key", b"3")
        assert (await ask(broker, "POST", "/v1/seal", {"vhost": "/", "tap": "a"})).json == {"last_seal": 1}
        assert [seal.count for seal in broker.taps.view.seals] == [2]
        assert (await ask(broker, "POST", "/v1/seal", {})).json == {"last_seal": 2}
        assert (await ask(broker, "POST", "/v1/seal", {"tap": "c"})).status == 404


async def test_a_queue_is_read_as_a_snapshot(tmp_path: Path) -> None:
    """The messages of the queue stay; the files belong to the user who may read the queue, until they are deleted."""
    async with tapped_broker(tmp_path / "data") as broker:
        async with client_of(broker) as channel:
            await channel.declare_queue("orders", durable=True)
            for number in range(3):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), "orders")
        reader(broker, "^orders$")
        taken = await ask(broker, "POST", "/v1/snapshots", {"vhost": "/", "queue": "orders"}, user=ALICE)
        assert taken.status == 201
        snapshot, (file,) = taken.json["id"], taken.json["files"]
        path = f"/v1/snapshots/{snapshot}/{file['n']}"
        got = await ask(broker, "GET", path, user=ALICE)
        assert (got.status, len(got.body), got.headers["etag"]) == (200, file["bytes"], f'"{file["crc"]:08x}"')
        assert [row.body for row in open_slot(got.body)] == [b"0", b"1", b"2"]
        assert (await ask(broker, "GET", f"/v1/snapshots/{snapshot}/99")).status == 404
        broker.administration.permissions.set("alice", "/", "", "", "^other$")
        for method, target in (("GET", path), ("DELETE", f"/v1/snapshots/{snapshot}")):
            refused = await ask(broker, method, target, user=ALICE)
            assert refused.refusal[2] == "access to queue 'orders' in vhost '/' refused for user 'alice'"
        assert (await ask(broker, "POST", "/v1/snapshots", {"queue": "orders"}, user=ALICE)).status == 403
        assert (await ask(broker, "POST", "/v1/snapshots", {"queue": "nothing"})).status == 404
        assert (await ask(broker, "DELETE", f"/v1/snapshots/{snapshot}")).status == 204
        assert (await ask(broker, "GET", path)).status == 404
        assert broker.vhosts["/"].queues["orders"].ready == 3


async def test_a_queue_of_another_connection_is_private(tmp_path: Path) -> None:
    """A user who may read every queue cannot read another connection's exclusive queue over HTTP; an operator can."""
    async with tapped_broker(tmp_path / "data") as broker, client_of(broker) as channel:
        await channel.declare_queue("mine", exclusive=True)
        await channel.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
        (held,) = [name for name in broker.vhosts["/"].queues if name != "mine"]
        reader(broker, ".*")
        for queue in ("mine", held):
            said = await ask(broker, "POST", "/v1/snapshots", {"queue": queue}, user=ALICE)
            assert said.refusal[:2] == (403, "access_refused")
            assert f"queue '{queue}' in vhost '/'" in said.refusal[2]
            taken = await ask(broker, "POST", "/v1/snapshots", {"queue": queue})
            assert taken.status == 201
            file = await ask(broker, "GET", f"/v1/snapshots/{taken.json['id']}/0", user=ALICE)
            assert file.refusal[:2] == (403, "access_refused")


async def test_snapshots_that_are_being_taken_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of concurrent snapshots is limited, however many are requested at once."""
    monkeypatch.setattr("broker.manage.slot_routes.SNAPSHOTS_MAX", 2)
    async with tapped_broker(tmp_path / "data") as broker:
        async with client_of(broker) as channel:
            await channel.declare_queue("q")
            await channel.default_exchange.publish(aio_pika.Message(b"m"), "q")
        async with broker.taps._writer.turn:
            asked = [asyncio.create_task(ask(broker, "POST", "/v1/snapshots", {"queue": "q"})) for _ in range(3)]
            done, _ = await asyncio.wait(asked, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
            assert [one.result().status for one in done] == [503]
        assert sorted([(await one).status for one in asked]) == [201, 201, 503]
        assert len(broker.taps.snapshots) == 2


async def test_a_client_that_leaves_in_the_middle_of_a_slot_leaves_nothing(tmp_path: Path) -> None:
    """No open file or connection remains; a client that stays and does not read is dropped after a while."""
    async with tapped_broker(tmp_path / "data", "a", http={"timeout_ms": 300}) as broker:
        seal = await slot_of(broker, "a", *[b"x" * (1 << 20) for _ in range(15)])
        assert broker.taps.slot_path(seal).stat().st_size > 15 << 20
        port = broker.manage.port()

        def begin() -> socket.socket:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(DEADLINE_S)
            client.connect(("127.0.0.1", port))
            client.sendall(request("GET", f"/v1/slots/{seal}"))
            assert statuses(client.recv(100)) == [200]
            return client

        async def left() -> bool:
            return not broker.manage.clients() and not open_slot_files()

        gone = await asyncio.to_thread(begin)
        assert open_slot_files() != []
        gone.close()
        await wait_until_async(left, "nothing is left of who has gone")
        silent = await asyncio.to_thread(begin)
        await wait_until_async(left, "nothing is left of who does not read")
        silent.close()
        assert (await ask(broker, "GET", f"/v1/slots/{seal}")).status == 200


async def test_a_slot_that_goes_is_still_sent_to_its_end(tmp_path: Path) -> None:
    """A slot that is released while it is sent still arrives completely."""
    async with tapped_broker(tmp_path / "data", "a") as broker:
        seal = await slot_of(broker, "a", *[b"x" * (1 << 20) for _ in range(12)])
        file = broker.taps.slot_path(seal).read_bytes()
        web = Web(broker.manage.port())
        await web.later("GET", "/healthz")
        web.connection.request("GET", f"/v1/slots/{seal}", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
        answer = await asyncio.to_thread(web.connection.getresponse)
        begun = await asyncio.to_thread(answer.read, 1000)
        await broker.taps.remove("/", "a", drop=True)
        assert not broker.taps.slot_path(seal).exists()
        assert begun + await asyncio.to_thread(answer.read) == file
        web.close()


async def test_a_broker_in_memory_serves_its_slots_too() -> None:
    """A broker without files serves its slots as well, and a remote reader sees no difference."""
    async with InMemory(http={"enabled": True}) as broker:
        server = broker.server
        await server.taps.add("/", "amq.topic", "#", name="a")
        seal = await slot_of(server, "a", b"1", b"2")
        said = await ask(server, "GET", f"/v1/slots/{seal}")
        assert [row.body for row in open_slot(said.body)] == [b"1", b"2"]
        await server.taps.remove("/", "a", drop=True)
        assert (await ask(server, "GET", f"/v1/slots/{seal}")).status == 404
