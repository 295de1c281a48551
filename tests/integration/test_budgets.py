"""Limits and budgets, as docs/operations.md lists them: while one client is at the limit, another's steps work."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import ExitStack, closing
from pathlib import Path

import aio_pika
import pytest
import trustme
from pamqp import commands

from broker.core.auth.login_counts import BURST, WAIT_MAX_S
from broker.core.auth.users import user_of
from broker.net.control import CLIENTS_MAX
from broker.net.tls_server import TlsServer
from broker.server import BrokerServer
from broker.store.files import Files
from tests.deadline import DEADLINE_S, wait_until_async
from tests.http_talk import Response, Web, ask, request, statuses, until_closed
from tests.in_process import client_of, log_in, running_broker
from tests.raw_client import RawClient

HTTP = {"enabled": True, "port": 0}
MOST = 4
ALICE, BOB = ("alice", "s3cret"), ("bob", "s3cret")
ELSEWHERE = "127.0.0.2"  # a stranger's address, another network than that of the tests' clients


def connected(port: int, octets: bytes, address: str = ELSEWHERE) -> socket.socket:
    """Connect from an address, and send something."""
    client = socket.create_connection(("127.0.0.1", port), DEADLINE_S, (address, 0))
    client.sendall(octets)
    return client


def ended(client: socket.socket) -> bool:
    """Return whether the broker has ended a connection."""
    client.setblocking(False)
    try:
        while client.recv(1 << 20):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


async def count_open(clients: list[socket.socket], wanted: int) -> None:
    """Wait until the broker holds this many of these connections."""
    await wait_until_async(
        lambda: sum(not ended(client) for client in clients) == wanted, f"{wanted} connections are left"
    )


async def test_guesses_at_a_name_are_refused_and_lock_nobody_else_out(tmp_path: Path) -> None:
    """Over AMQP and HTTP together. Users of the same address log in, whether their passwords are proven or not."""
    async with running_broker(tmp_path, http=HTTP) as broker:
        administration = broker.administration
        for name in ("alice", "bob"):
            administration.users.put(user_of({"name": name, "password": "s3cret", "tags": ["management"]}))
            administration.permissions.set(name, "/", ".*", ".*", ".*")
        broker.listener._logins._attempts._now_s = lambda: 0.0  # logins are forgotten with time
        guesses = BURST + int(WAIT_MAX_S) + 5
        with ExitStack() as clients:

            def guess() -> None:
                sent = [clients.enter_context(RawClient("127.0.0.1", broker.listener.port)) for _ in range(guesses)]
                for number, client in enumerate(sent):
                    client.greet()
                    client.authenticate("alice", f"wrong{number}")
                for client in (*sent[:BURST], *sent[-5:]):
                    assert client.expect(commands.Connection.Close, 0).reply_code == 403
                assert not any(client.readable(0) for client in sent[BURST:-5])

            await asyncio.to_thread(guess)
            refused = await ask(broker, "GET", "/api/whoami", user=("alice", "s3cret"))
            assert refused.status == 401
            for _ in range(2):
                await log_in(broker, "bob", "s3cret")
                assert (await ask(broker, "GET", "/api/whoami", user=("bob", "s3cret"))).status == 200
                assert (await ask(broker, "GET", "/api/whoami")).status == 200
        assert broker.listener._logins._attempts.begin("127.0.0.1", "bob") == 0.0


@pytest.mark.parametrize(
    "octets",
    [b"", b"G", request("GET", "/healthz", None)[:-2], request("GET", "/", None) * 3,
     request("POST", "/api/session", None, Content_Length="100", Content_Type="application/json")],
    ids=["silent", "one byte", "most of a head", "whole requests", "a body that does not come"],
)  # fmt: skip
@pytest.mark.parametrize("address", [ELSEWHERE, "127.0.0.1"])
async def test_strangers_do_not_shut_the_http_ports(tmp_path: Path, octets: bytes, address: str) -> None:
    """Whatever they send or not: the oldest of the busiest address makes room. Probes and users are answered."""
    http = {**HTTP, "connections_max": MOST}
    async with running_broker(tmp_path, http=http, metrics=HTTP) as broker:
        for port in (broker.manage.port(), broker.manage.port("metrics")):
            with ExitStack() as stack:
                kept = stack.enter_context(closing(Web(port)))
                assert (await kept.later("GET", "/healthz")).status == 200
                strangers = [stack.enter_context(connected(port, octets, address)) for _ in range(3 * MOST)]
                await count_open(strangers, MOST - (address == ELSEWHERE))
                for path in (
                    "/healthz",
                    "/readyz",
                    "/metrics" if port == broker.manage.port("metrics") else "/api/whoami",
                ):
                    with closing(Web(port)) as fresh:
                        assert (await fresh.later("GET", path)).status == 200
                if address == ELSEWHERE:
                    assert (await kept.later("GET", "/healthz")).status == 200


async def test_requests_of_one_user_leave_places_for_others(tmp_path: Path) -> None:
    """A request whose body does not come, then a long answer, ends for another user's request, and for no third's."""
    async with running_broker(tmp_path, http={**HTTP, "connections_max": MOST}) as broker:
        broker.administration.users.add("greedy", "s3cret", ["administrator"])
        port, greedy = broker.manage.port(), ("greedy", "s3cret")
        live = request("GET", "/api/live", greedy)
        slow = request("POST", "/v1/seal", greedy, Content_Length="9", Content_Type="application/json")
        with ExitStack() as stack:

            async def sent(octets: bytes) -> socket.socket:
                admitted = len(broker.manage._listeners["http"]._answered)
                client = stack.enter_context(connected(port, octets))
                await wait_until_async(
                    lambda: len(broker.manage._listeners["http"]._answered) == min(admitted + 1, MOST),
                    "the request is admitted",
                )
                return client

            streams = [await sent(live) for _ in range(MOST - 1)]
            bodies = [await sent(slow)]
            assert (await ask(broker, "GET", "/api/whoami")).status == 200
            assert (ended(bodies[0]), [ended(stream) for stream in streams]) == (True, [False] * (MOST - 1))
            streams.append(await sent(live))
            one_more = stack.enter_context(connected(port, request("GET", "/api/whoami", greedy)))
            answer = await asyncio.to_thread(until_closed, one_more)
            assert statuses(answer) == [503], "who has most has no place left, and nobody else pays"
            assert (await ask(broker, "GET", "/api/whoami")).status == 200
            assert [ended(stream) for stream in streams] == [True] + [False] * (MOST - 1)


async def test_commands_of_one_user_leave_places_for_others(tmp_path: Path) -> None:
    """The oldest command of who has most ends for another user's; the user's own next one is refused."""
    async with running_broker(tmp_path, http=HTTP) as broker:
        broker.administration.users.add("greedy", "s3cret", ["monitoring"])
        port, greedy = broker.manage.port(), ("greedy", "s3cret")
        begun = request("POST", "/v1/control", greedy, Transfer_Encoding="chunked", Content_Type="application/json")
        with ExitStack() as stack:
            held = [stack.enter_context(connected(port, begun)) for _ in range(CLIENTS_MAX)]
            answered = broker.manage._listeners["http"]._answered
            await wait_until_async(lambda: len(answered) == CLIENTS_MAX, "all commands have begun")
            one_more = stack.enter_context(connected(port, begun))
            assert await asyncio.to_thread(one_more.recv, 12) == b"HTTP/1.1 503"
            assert (await ask(broker, "POST", "/v1/control", b'{"verb":"status"}\n')).status == 200
            await count_open(held, CLIENTS_MAX - 1)


async def test_handshakes_do_not_shut_amqp(tmp_path: Path) -> None:
    """At the limit the oldest handshake of the busiest address makes room; who has logged in stays."""
    async with running_broker(tmp_path, server={"connections_max": MOST}) as broker:
        port = broker.listener.port
        with ExitStack() as stack:
            user = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
            begun = stack.enter_context(RawClient("127.0.0.1", port))
            await asyncio.to_thread(begun.greet)
            strangers = [stack.enter_context(connected(port, b"A")) for _ in range(3 * MOST)]
            await count_open(strangers, MOST - 2)
            await log_in(broker, "guest", "guest")

            def finish() -> None:
                begun.authenticate()
                begun.expect(commands.Connection.Tune, 0)

            await asyncio.to_thread(finish)
            await (await user.channel()).declare_queue(exclusive=True)
            await user.close()


async def test_tls_handshakes_do_not_shut_the_ports(tmp_path: Path) -> None:
    """Before its handshake a client is not a connection yet: the oldest of the busiest address makes room."""
    authority = trustme.CA()
    issued, file = authority.issue_cert("127.0.0.1"), tmp_path / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(file)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = {"port": 0, "certfile": str(file)}
    async with running_broker(tmp_path / "data", http={**HTTP, "tls": True}, tls=tls) as broker:
        servers = (*broker.listener._tls_servers, *broker.manage._listeners["http"]._servers)
        for server, port, said, answer in zip(
            servers, (broker.listener.tls_port, broker.manage.port()),
            (b"AMQP\0\0\x09\x01", request("GET", "/healthz", None)), (b"\x01\0\0", b"HTTP/1.1 200"), strict=True,
        ):  # fmt: skip
            assert isinstance(server, TlsServer)
            server._handshakes_max = MOST

            def talk(plain: socket.socket, said: bytes = said, answer: bytes = answer) -> None:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
                    client.sendall(said)
                    assert client.recv(len(answer)) == answer

            with ExitStack() as stack:
                begun = stack.enter_context(connected(port, b"", "127.0.0.1"))
                strangers = [stack.enter_context(connected(port, b"\x16")) for _ in range(3 * MOST)]
                await count_open(strangers, MOST - 1)
                for client in (stack.enter_context(connected(port, b"", "127.0.0.1")), begun):
                    await asyncio.to_thread(talk, client)

                async def over(server: TlsServer = server, strangers: list[socket.socket] = strangers) -> bool:
                    return server.handshakes == sum(not ended(client) for client in strangers)

                await wait_until_async(over, "who has shaken hands counts no more")


def add_readers(broker: BrokerServer) -> None:
    """Add two users who may read everything."""
    for name, password in (ALICE, BOB):
        broker.administration.users.add(name, password)
        broker.administration.permissions.set(name, "/", "", "", ".*")


async def snapshot(broker: BrokerServer, user: tuple[str, str]) -> Response:
    """Take a snapshot of the queue q."""
    return await ask(broker, "POST", "/v1/snapshots", {"queue": "q"}, user=user)


async def fill_queue(broker: BrokerServer, size_bytes: int) -> None:
    """Fill the queue q."""
    async with client_of(broker) as channel:
        await channel.declare_queue("q", durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"m" * size_bytes, delivery_mode=2), "q")


async def test_a_users_snapshots_take_the_place_of_the_users_own(tmp_path: Path) -> None:
    """However many are asked for at once. What others have taken stays, and they can take more."""
    async with running_broker(tmp_path, http=HTTP, taps={"snapshots_user_max": 2}) as broker:
        add_readers(broker)
        await fill_queue(broker, 100)
        kept = (await snapshot(broker, BOB)).json["id"]
        for _ in range(4):
            assert (await snapshot(broker, ALICE)).status == 201
        crowd = await asyncio.gather(*[snapshot(broker, ALICE) for _ in range(6)])
        assert {201} <= {said.status for said in crowd} <= {201, 409}
        owners = [one.owner for one in broker.taps.snapshots.values()]
        assert (owners.count("alice"), owners.count("bob")) == (2, 1)
        assert (await ask(broker, "GET", f"/v1/snapshots/{kept}/0", user=BOB)).status == 200
        assert (await snapshot(broker, BOB)).status == 201


async def test_a_users_snapshots_leave_room_on_the_disk_for_others(tmp_path: Path) -> None:
    """A user may take as much of the share of the disk as remains; the user's own older snapshots go first."""

    class Disk(Files):
        def disk_bytes(self, _folder: Path) -> int:
            return 1_000_000

    taps = {"snapshots_disk_ratio": 0.2, "snapshots_user_max": 9, "window_bytes": 40_000}
    async with running_broker(tmp_path, Disk(), http=HTTP, taps=taps) as broker:
        add_readers(broker)
        await fill_queue(broker, 30_000)
        for _ in range(5):
            assert (await snapshot(broker, ALICE)).status == 201
        assert [one.owner for one in broker.taps.snapshots.values()] == ["alice"] * 2, "half of 200,000, less a file"
        assert (await snapshot(broker, BOB)).status == 201
        await fill_queue(broker, 35_000)
        await fill_queue(broker, 35_000)
        refused = await snapshot(broker, ALICE)  # three files
        assert refused.refusal[:2] == (409, "conflict") and "taps.snapshots_disk_ratio" in refused.refusal[2]
        assert [one.owner for one in broker.taps.snapshots.values()] == ["bob"]


async def test_a_user_creates_so_many_cursors(tmp_path: Path) -> None:
    """Those count that are being created, and those of before a restart. Others create theirs, the operator too."""
    taps = {"cursors_user_max": 2}

    async def put(broker: BrokerServer, name: str, user: tuple[str, str]) -> int:
        said = await ask(broker, "PUT", f"/v1/cursors/{name}", {"tap": "t", "seal": 0}, user=user)
        assert said.status == 204 or "taps.cursors_user_max" in said.refusal[2]
        return said.status

    async with running_broker(tmp_path, http=HTTP, taps=taps) as broker:
        add_readers(broker)
        await broker.taps.add("/", "amq.topic", "#", name="t", cursors=["first"])
        crowd = await asyncio.gather(*[put(broker, f"a{number}", ALICE) for number in range(5)])
        assert sorted(crowd) == [204, 204, 409, 409, 409]
    async with running_broker(tmp_path, http=HTTP, taps=taps) as broker:
        add_readers(broker)
        assert await put(broker, "a9", ALICE) == 409
        own = next(cursor.name for cursor in broker.taps.view.cursors if cursor.user == "alice")
        assert await put(broker, own, ALICE) == 204, "it is there"
        assert [await put(broker, f"b{number}", BOB) for number in range(3)] == [204, 204, 409]
        await broker.taps.cursors.set("operator", "/", "t", 0)
