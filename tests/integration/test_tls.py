"""TLS: real handshakes, client certificates, and certificates that change while the broker runs."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme
import uvloop
from pamqp import commands
from pika.credentials import ExternalCredentials
from structlog.testing import capture_logs

from broker.net.address import CannotListen, bind
from broker.server import BrokerServer
from broker.settings import Settings
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S, wait_until, wait_until_async
from tests.in_process import WITHOUT_HTTP, running_broker
from tests.raw_client import RawClient, publish_frames

HOST = "localhost"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Provide the authority that signs the broker's and the clients' certificates."""
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    """Provide the broker's certificate, key and authority, as settings."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    write(authority.issue_cert(HOST, "127.0.0.1"), tmp_path)
    names = {"certfile": "cert.pem", "keyfile": "key.pem", "cafile": "ca.pem"}
    return {key: str(tmp_path / name) for key, name in names.items()}


def write(issued: trustme.LeafCert, folder: Path) -> None:
    """Write a certificate and its key where the settings expect them."""
    for path, blob in ((folder / "cert.pem", issued.cert_chain_pems[0]), (folder / "key.pem", issued.private_key_pem)):
        blob.write_to_path(path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)


def client_context(authority: trustme.CA, *names: str, common_name: str | None = None) -> ssl.SSLContext:
    """Return a client's TLS context, with or without a certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if names:
        authority.issue_cert(*names, common_name=common_name).configure_cert(context)
    return context


@contextmanager
def connected(port: int, context: ssl.SSLContext, credentials: Any = None) -> Iterator[pika.BlockingConnection]:
    """Yield a pika connection over TLS."""
    parameters = pika.ConnectionParameters(
        HOST,
        port,
        credentials=credentials or pika.PlainCredentials("guest", "guest"),
        ssl_options=pika.SSLOptions(context, HOST),
        socket_timeout=DEADLINE_S,
    )
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection
    finally:
        connection.close()


def talk(port: int, context: ssl.SSLContext, credentials: Any = None) -> bytes:
    """Send a message of a megabyte over TLS and return the received one."""
    with connected(port, context, credentials) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"m" * (1 << 20))
        return bytes(channel.basic_get(queue, auto_ack=True)[2])


def certificate_at(port: int, authority: trustme.CA, **options: Any) -> dict[str, Any]:
    """Return the certificate that the broker presents now."""
    context = client_context(authority)
    for name, value in options.items():
        setattr(context, name, value)
    with (
        socket.create_connection((HOST, port), DEADLINE_S) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        return dict(connection.getpeercert() or {})


@pytest.mark.parametrize("section", ["server", "tls"])
def test_a_port_that_another_program_took_meanwhile_is_named(
    section: str, files: dict[str, str], tmp_path: Path
) -> None:
    """Another program may bind the port too and listen first; uvloop reports nothing, and the start names the port."""
    (other,) = bind("127.0.0.1", 0)
    port = other.getsockname()[1]
    sections = {"server": {"host": "127.0.0.1", "port": 0, "data_dir": tmp_path / "data"}, "tls": {"port": 0, **files}}
    sections[section]["port"] = port

    async def start() -> None:
        broker = BrokerServer(Settings(**WITHOUT_HTTP, **sections))
        await broker.recover()
        other.listen()
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await broker.serve()

    with other, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(start())


async def test_pika_talks_over_tls(authority: trustme.CA, files: dict[str, str], tmp_path: Path) -> None:
    """A message of many records arrives, and the plain listener still works."""
    async with running_broker(tmp_path / "data", tls={"port": 0, **files}) as broker:
        port = broker.listener.tls_port
        assert await asyncio.to_thread(talk, port, client_context(authority)) == b"m" * (1 << 20)
        with RawClient("127.0.0.1", broker.listener.port) as plain:
            assert (await asyncio.to_thread(plain.greet)).mechanisms == "PLAIN AMQPLAIN"


async def test_bytes_behind_close_do_not_reset_the_connection(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path
) -> None:
    """Data after the client's connection.close is read and dropped; the client closes the socket."""
    async with running_broker(tmp_path / "data", tls={"port": 0, **files}) as broker:
        late = publish_frames(1, "", "q", bytes(100_000)) * 80

        def close() -> None:
            with RawClient(HOST, broker.listener.tls_port) as client:
                client.socket = client_context(authority).wrap_socket(client.socket, server_hostname=HOST)
                client.open()
                client.method(0, commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
                client.socket.sendall(late)
                client.expect(commands.Connection.CloseOk, 0)
                client.socket.sendall(late)

        await asyncio.to_thread(close)
        await wait_until_async(lambda: not broker.listener.transports, "the end of the connection")


async def test_the_session_knows_what_was_agreed_on(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path
) -> None:
    """The connection list has protocol, cipher and the client's certificate."""
    async with running_broker(tmp_path / "data", tls={"port": 0, "verify": "peer", **files}) as broker:
        context = client_context(authority, "alice@example.com", common_name="alice")

        def look() -> Any:
            with connected(broker.listener.tls_port, context):
                (session,) = broker.listener.sessions()
                return session.peer

        peer = await asyncio.to_thread(look)
        assert peer.tls.protocol == "TLSv1.3" and peer.tls.cipher.startswith("TLS_")
        assert ("email", "alice@example.com") in peer.tls.certificate["subjectAltName"]
        assert peer.name.endswith(f" -> {peer.server_address}:{broker.listener.tls_port}")


async def test_a_client_without_tls_gets_nowhere_on_its_port(files: dict[str, str], tmp_path: Path) -> None:
    """A client without TLS is disconnected without an answer."""
    async with running_broker(tmp_path / "data", tls={"port": 0, **files}) as broker:
        with RawClient("127.0.0.1", broker.listener.tls_port) as client:
            client.send(b"AMQP\x00\x00\x09\x01")
            await asyncio.to_thread(client.skip_to_end)
        assert broker.listener.sessions() == []


async def test_a_client_that_says_nothing_is_dropped(files: dict[str, str], tmp_path: Path) -> None:
    """A client that sends nothing is dropped at the deadline of the TLS handshake."""
    async with running_broker(tmp_path / "data", tls={"port": 0, "handshake_timeout_ms": 100, **files}) as broker:
        with RawClient("127.0.0.1", broker.listener.tls_port) as client:
            await asyncio.to_thread(client.skip_to_end)


@pytest.mark.parametrize(("least", "offered"), [("1.2", ssl.TLSVersion.TLSv1_1), ("1.3", ssl.TLSVersion.TLSv1_2)])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_an_old_version_is_not_spoken(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path, least: str, offered: ssl.TLSVersion
) -> None:
    """The broker accepts TLS 1.2 and later, or the versions of the settings."""
    async with running_broker(tmp_path / "data", tls={"port": 0, "min_version": least, **files}) as broker:
        port = broker.listener.tls_port
        with pytest.raises(OSError, match=r"(?i)ssl|reset|eof"):
            await asyncio.to_thread(certificate_at, port, authority, maximum_version=offered)
        assert await asyncio.to_thread(certificate_at, port, authority)


@pytest.mark.parametrize("stranger", [True, False])
async def test_whoever_has_no_certificate_of_the_authority_is_turned_away(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path, stranger: bool
) -> None:
    """A client without a certificate, or with one of another authority, is refused; the log has the reason."""
    context = client_context(authority)
    if stranger:
        trustme.CA().issue_cert("mallory@example.com").configure_cert(context)
    async with running_broker(tmp_path / "data", tls={"port": 0, "verify": "peer", **files}) as broker:
        with capture_logs() as events, pytest.raises(pika.exceptions.AMQPConnectionError):
            await asyncio.to_thread(talk, broker.listener.tls_port, context)
        assert broker.listener.sessions() == []
    reasons = [event["reason"] for event in events if event["event"] == "tls.handshake_failed"]
    assert reasons and set(reasons) == {
        "unable to get local issuer certificate" if stranger else "peer did not return a certificate"
    }


@pytest.mark.parametrize(
    ("auth", "user"),
    [
        ({"cert_login_from": "common_name"}, "alice"),
        ({"cert_login_from": "subject_alternative_name", "cert_login_san_type": "email"}, "alice@example.com"),
    ],
)
async def test_a_certificate_logs_in(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path, auth: dict[str, str], user: str
) -> None:
    """A certificate logs in by EXTERNAL as the user that it names; other names are refused."""
    async with running_broker(
        tmp_path / "data", auth={"users": {user: "x"}, **auth}, tls={"port": 0, "verify": "peer", **files}
    ) as broker:
        port = broker.listener.tls_port
        alice = client_context(authority, "alice@example.com", common_name="alice")
        assert await asyncio.to_thread(talk, port, alice, ExternalCredentials())
        bob = client_context(authority, "bob@example.com", common_name="bob")
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            await asyncio.to_thread(talk, port, bob, ExternalCredentials())


async def test_a_certificate_may_be_optional(authority: trustme.CA, files: dict[str, str], tmp_path: Path) -> None:
    """With optional certificates a client without one uses a password, and EXTERNAL is refused."""
    tls = {"port": 0, "verify": "peer", "fail_if_no_peer_cert": False, **files}
    async with running_broker(tmp_path / "data", tls=tls) as broker:
        port, context = broker.listener.tls_port, client_context(authority)
        assert await asyncio.to_thread(talk, port, context)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            await asyncio.to_thread(talk, port, context, ExternalCredentials())


async def test_a_new_certificate_is_shown_and_open_connections_stay(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path
) -> None:
    """Changed files are noticed; half a change keeps the old pair and is logged."""
    tls = {"port": 0, "reload_interval_ms": 100, **files}
    async with running_broker(tmp_path / "data", tls=tls) as broker:
        port = broker.listener.tls_port

        async def serial() -> str:
            return str((await asyncio.to_thread(certificate_at, port, authority))["serialNumber"])

        before = await serial()
        context = client_context(authority)
        with capture_logs() as events:
            connection = await asyncio.to_thread(lambda: pika.BlockingConnection(tls_parameters(broker, context)))
            (tmp_path / "cert.pem").write_text("no certificate")
            await wait_until_async(lambda: any(event["event"] == "tls.not_reloaded" for event in events), "a refusal")
            assert await serial() == before
            write(authority.issue_cert(HOST), tmp_path)
            await wait_until_async(lambda: any(event["event"] == "tls.reloaded" for event in events), "a reload")
        assert await serial() != before
        await asyncio.to_thread(lambda: connection.channel().queue_declare("", exclusive=True))
        await asyncio.to_thread(connection.close)


async def test_an_idle_client_reads_why_the_broker_stopped(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path
) -> None:
    """A client that does not read during the stop finds code 320 later, and the stop does not wait for it."""
    with capture_logs() as events:
        async with running_broker(tmp_path / "data", tls={"port": 0, **files}) as broker:
            parameters = tls_parameters(broker, client_context(authority))
            connection = await asyncio.to_thread(pika.BlockingConnection, parameters)
    assert [event["count"] for event in events if event["event"] == "connection.left"] == [1]
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        await asyncio.to_thread(connection.process_data_events)
    assert closed.value.reply_code == 320


def tls_parameters(broker: BrokerServer, context: ssl.SSLContext) -> pika.ConnectionParameters:
    """Return pika's parameters for the broker over TLS."""
    return pika.ConnectionParameters(HOST, broker.listener.tls_port, ssl_options=pika.SSLOptions(context, HOST))


def options(files: dict[str, str]) -> dict[str, str]:
    """Return TLS settings as environment variables."""
    return {f"SLOTMQ_TLS__{key.upper()}": value for key, value in files.items()} | {"SLOTMQ_TLS__PORT": "0"}


def started_event(process: BrokerProcess) -> dict[str, Any]:
    """Return the log event of the start, which a thread writes after the ready line."""
    (started,) = wait_until(
        lambda: [event for event in process.log_events() if event["event"] == "server.started"], "the event"
    )
    return started


def test_sighup_reads_the_files_again(authority: trustme.CA, files: dict[str, str], tmp_path: Path) -> None:
    """After SIGHUP the broker keeps running, with the new certificate."""
    environment = options(files) | {"SLOTMQ_TLS__RELOAD_INTERVAL_MS": "3600000"}
    process = BrokerProcess(tmp_path / "data", environment=environment).start()
    try:
        port = started_event(process)["tls_port"]
        before = certificate_at(port, authority)["serialNumber"]
        write(authority.issue_cert(HOST), tmp_path)
        assert certificate_at(port, authority)["serialNumber"] == before
        process.running.send_signal(signal.SIGHUP)
        wait_until(lambda: certificate_at(port, authority)["serialNumber"] != before, "the new certificate")
        with RawClient("127.0.0.1", process.address.port) as client:
            client.open().call(1, commands.Channel.Open(), commands.Channel.OpenOk)
        assert process.terminate() == 0
        assert process.errors() == []
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ("missing", "slotmq: tls.certfile {folder}/none.pem: No such file or directory"),
        ("garbage", "slotmq: tls.certfile {folder}/key.pem, tls.keyfile {folder}/key.pem: "),
        ("mismatch", "slotmq: tls.certfile {folder}/cert.pem, tls.keyfile {folder}/other.pem: key values mismatch"),
        ("authority", "slotmq: tls.cafile {folder}/key.pem: "),
        ("no authority", 'slotmq: tls: verify = "peer" needs cafile: without it no client is trusted'),
        ("port", "slotmq: port {port} on 127.0.0.1 is in use; another one: tls.port"),
    ],
)
def test_what_cannot_be_used_keeps_the_broker_from_starting(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path, broken: str, line: str
) -> None:
    """Unusable TLS files end the start with one line and exit code 2, before a port or a folder is opened."""
    authority.issue_cert(HOST).private_key_pem.write_to_path(tmp_path / "other.pem")
    change = {
        "missing": {"certfile": str(tmp_path / "none.pem")},
        "garbage": {"certfile": files["keyfile"]},
        "mismatch": {"keyfile": str(tmp_path / "other.pem")},
        "authority": {"cafile": files["keyfile"]},
        "no authority": {"cafile": "", "verify": "peer"},
        "port": {},
    }[broken]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if broken == "port" else 0
        environment = options(files | change) | {"SLOTMQ_TLS__PORT": str(port)}
        process = BrokerProcess(tmp_path / "data", environment=environment)
        process.spawn()
        assert process.wait() == (1 if broken == "port" else 2)  # a port may be free at the next try
    assert process.stderr().startswith(line.format(folder=tmp_path, port=port))
    assert process.stderr().count("\n") == 1 and process.stdout() == ""
    assert not process.folder.exists()


def test_an_encrypted_key_is_opened_with_its_password(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path
) -> None:
    """A wrong password of the key ends the start in one line, and the terminal is never asked."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"s3cret")
    locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    (tmp_path / "key.pem").write_bytes(locked)
    for password, code in (("wr0ng", 2), ("s3cret", None)):
        process = BrokerProcess(tmp_path / "data", environment=options(files) | {"SLOTMQ_TLS__KEY_PASSWORD": password})
        if code is None:
            process.start()
            assert process.terminate() == 0
        else:
            process.spawn()
            assert process.wait() == code
        assert password not in process.stderr() + process.stdout()


async def test_a_broker_may_be_reached_by_tls_alone(
    authority: trustme.CA, files: dict[str, str], tmp_path: Path
) -> None:
    """With tls.only no other port is open, and the announced address says so."""
    async with running_broker(tmp_path / "data", tls={"port": 0, "only": True, **files}) as broker:
        assert (broker.listener.port, len(broker.listener._servers)) == (0, 0)
        assert broker.url == f"amqps://127.0.0.1:{broker.listener.tls_port}/"
        port = broker.listener.tls_port
        assert await asyncio.to_thread(talk, port, client_context(authority)) == b"m" * (1 << 20)
