"""MQTT over WebSocket, with paho and with frames that a test writes."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from broker.manage.websocket import WebSocket
from broker.mqtt.websocket_frames import WebSocketFrames
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S
from tests.in_process import running_broker
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBLISH,
    RawMqtt,
    connect,
    packet,
    publish,
    subscribe,
)
from tests.mqtt.test_talk import api

BINARY, TEXT, CLOSE, PING, PONG, CONTINUATION = 0x82, 0x81, 0x88, 0x89, 0x8A, 0x80
END = 0x80


def http_port(process: BrokerProcess) -> int:
    """Return the HTTP port that the log names."""
    line = next(line for line in process.stderr().splitlines() if '"server.started"' in line)
    return int(json.loads(line)["http_port"])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Provide a broker with both listeners."""
    folder = tmp_path_factory.mktemp("websocket") / "folder"
    settings = {"SLOTMQ_HTTP__ENABLED": "true", "SLOTMQ_HTTP__PORT": "0", "SLOTMQ_AUTH__USERS__PAGE": "page"}
    settings |= {"SLOTMQ_AUTH__USERS__GUEST": "guest", "SLOTMQ_AUTH__USERS__LATE": "late"}
    process = mqtt_process(folder, **settings).start()
    yield process
    errors = process.errors()
    assert process.terminate() == 0
    assert not errors, errors


@pytest.fixture
def port(process: BrokerProcess) -> int:
    """Provide the HTTP port."""
    return http_port(process)


def frame(first: int, payload: bytes, mask: bytes = b"\x11\x22\x33\x44") -> bytes:
    """Return a frame of a client."""
    size, flag = len(payload), 0x80 if mask else 0
    if size < 126:
        head = bytes([first, flag | size])
    elif size <= 0xFFFF:
        head = bytes([first, flag | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, flag | 127]) + size.to_bytes(8, "big")
    if not mask:
        return head + payload
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return head + mask + (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")


def request(*, drop: str = "", **changes: str) -> bytes:
    """Return the opening handshake."""
    headers = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "other, mqtt",
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    headers.pop(drop, None)
    return b"GET /mqtt HTTP/1.1\r\n" + b"".join([f"{n}: {v}\r\n".encode() for n, v in headers.items()]) + b"\r\n"


class RawWebSocket(RawMqtt):
    """A client whose packets go in frames; it collects the payload of binary frames."""

    def __init__(
        self, port: int, context: ssl.SSLContext | None = None, hello: bytes = request(), more: bytes = b""
    ) -> None:
        super().__init__(port, context)
        self._raw = b""
        self.pongs: list[bytes] = []
        self.sizes: list[int] = []
        self._socket.sendall(hello + more)
        while b"\r\n\r\n" not in self._raw:
            data = self._socket.recv(65536)
            if not data:
                break
            self._raw += data
        self.head, _, self._raw = self._raw.partition(b"\r\n\r\n")

    @property
    def status(self) -> int:
        """Return the status of the answer."""
        return int(self.head.split()[1])

    def send(self, *packets: bytes) -> RawWebSocket:
        """Send packets, each in a frame, in one call."""
        return self.send_frames(*[frame(BINARY, one) for one in packets])

    def send_frames(self, *frames: bytes) -> RawWebSocket:
        """Send frames in one call."""
        self._socket.sendall(b"".join(frames))
        return self

    def _take(self, count: int) -> bytes:
        while len(self._raw) < count:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError
            self._raw += data
        octets, self._raw = self._raw[:count], self._raw[count:]
        return octets

    def read_frame(self) -> tuple[int, bytes]:
        """Return the first octet and the payload of the next frame. Raises: EOFError."""
        first, size = self._take(2)
        if size >= 126:
            size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
        return first, self._take(size)

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            first, payload = self.read_frame()
            if first == PONG:
                self.pongs.append(payload)
            elif first == CLOSE:
                raise EOFError
            else:
                assert first == BINARY
                self.sizes.append(len(payload))
                self._buffer += payload
        octets, self._buffer = self._buffer[:count], self._buffer[count:]
        return octets

    def close_code(self) -> int:
        """Return the code of the close frame, which comes next and is the last."""
        first, payload = self.read_frame()
        assert first == CLOSE, first
        with pytest.raises((EOFError, ConnectionResetError)):
            self.read_frame()
        return int.from_bytes(payload[:2], "big")


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
def test_paho(port: int, version: MQTTProtocolVersion) -> None:
    """A client publishes at QoS 1 and gets it, also a message of a megabyte, and leaves."""
    client = Client(CallbackAPIVersion.VERSION2, f"ws{version}", protocol=version, transport="websockets")
    client.username_pw_set("guest", "guest")
    got: Queue[int] = Queue()

    def connected(*_: Any) -> None:
        client.subscribe("web/#", 1)

    def subscribed(*_: Any) -> None:
        for body in (b"x", b"y" * 1_000_000):
            client.publish("web/a", body, 1)

    client.on_connect, client.on_subscribe = connected, subscribed
    client.on_message = lambda _client, _data, message: got.put(len(message.payload))
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert [got.get(timeout=DEADLINE_S), got.get(timeout=DEADLINE_S)] == [1, 1_000_000]
    client.disconnect()
    client.loop_stop()


def test_how_a_client_is_shown(process: BrokerProcess, port: int) -> None:
    """Its protocol has RabbitMQ's name, and the HTTP port is in the list of listeners once more."""
    with RawWebSocket(port) as client:
        client.send(connect("shown")).expect(CONNACK)
        rows = {row["client_properties"]["client_id"]: row["protocol"] for row in api(process, "connections")}
        assert rows["shown"] == "Web MQTT 5-0"
        listeners = {row["protocol"]: row["port"] for row in api(process, "overview")["listeners"]}
        assert listeners["http"] == listeners["http/web-mqtt"] == port


def test_frames_are_no_packets(port: int) -> None:
    """Packets may begin and end anywhere in frames and fragments, with pings between, and before the answer 101."""
    octets = connect("frames") + publish("a", b"b" * 300, 1) + packet(0xC0)
    pieces = [octets[at : at + 7] for at in range(0, len(octets), 7)]
    fragments = [frame(2 if not at else 0, piece) for at, piece in enumerate(pieces[:-1])]
    sent = b"".join([one + frame(PING, b"p%d" % at) for at, one in enumerate(fragments)]) + frame(0x80, pieces[-1])
    with RawWebSocket(port, more=sent) as client:
        assert client.status == 101
        assert b"sec-websocket-protocol: mqtt" in client.head.lower()
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in client.head  # RFC 6455's example
        client.expect(CONNACK)
        assert {client.read()[0] for _ in range(2)} == {PUBACK, PINGRESP}
        assert client.pongs == [b"p%d" % (len(fragments) - 1)]  # only the last ping of what arrived together


def test_a_flood_of_small_frames_is_read_in_portions(port: int) -> None:
    """Thousands of frames in one read take turns with other clients, and none is lost."""
    with RawWebSocket(port) as client, RawWebSocket(port) as other:
        client.send(connect("flood"))
        client.expect(CONNACK)
        client.send_frames(
            frame(BINARY, b"") * 20_000, *[frame(BINARY, publish("f", b"", one)) for one in range(1, 500)]
        )
        other.send(connect("other")).expect(CONNACK)
        acked = [int.from_bytes(client.expect(PUBACK)[:2], "big") for _ in range(1, 500)]
        assert acked == list(range(1, 500))


WRONG = {
    "text": (frame(TEXT, b"hello"), 1003),
    "unmasked": (frame(BINARY, b"x", b""), 1002),
    "reserved bit": (frame(0xC2, b"x"), 1002),
    "unknown kind": (frame(0x83, b"x"), 1002),
    "long ping": (frame(PING, b"x" * 126), 1002),
    "nothing to go on with": (frame(CONTINUATION, b"x"), 1002),
    "ping in pieces": (frame(0x09, b"x"), 1002),
    "second beginning": (frame(0x02, b"") + frame(BINARY, b""), 1002),
    "close with a code that may not be": (frame(CLOSE, b"\x03\xed"), 1002),
    "half a code": (frame(CLOSE, b"\x03"), 1002),
    "reason that is no text": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
    "close": (frame(CLOSE, (1000).to_bytes(2, "big")), 1000),
    "close without a code": (frame(CLOSE, b""), 0),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("entered", [False, True])
def test_frames_that_end_the_connection(process: BrokerProcess, port: int, name: str, entered: bool) -> None:
    """Each gets its close code; what came before it in the same read is carried out, and the will is published."""
    octets, code = WRONG[name]
    with RawMqtt(mqtt_port(process)) as reader:
        reader.enter("reader")
        reader.send(subscribe(1, ("ends/#", 0))).read()
        with RawWebSocket(port) as client:
            before = b""
            if entered:
                will = b"\0" + b"\0\x09ends/will" + b"\0\x01w"
                client.send(connect("ends", will=will, will_flags=0x04)).expect(CONNACK)
                before = frame(BINARY, publish("ends/before", b"1"))
            client.send_frames(before, octets)
            assert client.close_code() == code
        if entered:
            assert [reader.expect(PUBLISH)[2:11] for _ in range(2)] == [b"ends/befo", b"ends/will"]


def test_a_client_that_does_not_read(port: int) -> None:
    """Its pongs wait, the last one alone, and its deliveries with them; it gets all once it reads."""
    with RawWebSocket(port) as client, RawWebSocket(port) as publisher:
        client.send(connect("slow")).expect(CONNACK)
        client.send(subscribe(1, ("slow", 1))).read()
        publisher.send(connect("quick")).expect(CONNACK)
        publisher.send(*[publish("slow", b"z" * 900_000, one) for one in range(1, 11)])
        for _ in range(10):
            publisher.expect(PUBACK)
        client.send_frames(*[frame(PING, b"%d" % one) for one in range(1000)])
        publisher.round_trip()
        assert [len(client.expect(PUBLISH)) for _ in range(10)] == [900_009] * 10
        client.send_frames(frame(PING, b"last"))
        client.round_trip()
        assert client.pongs[-1] == b"last"
        assert len(client.pongs) < 100


def test_all_before_a_close_is_carried_out(process: BrokerProcess, port: int) -> None:
    """A client sends its login, whose hash is yet to be computed, a message and its close at once."""
    with RawMqtt(mqtt_port(process)) as reader:
        reader.enter("late-reader")
        reader.send(subscribe(1, ("late", 0))).read()
        sent = [connect("late", user="late", password="late"), publish("late", b"m")]
        hello = b"".join([frame(BINARY, one) for one in sent]) + frame(CLOSE, b"")
        with RawWebSocket(port, more=hello) as client:
            client.expect(CONNACK)
            assert client.close_code() == 0
        assert reader.expect(PUBLISH)[2:6] == b"late"


class Socket(asyncio.Transport):
    """A socket that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Any] = []

    def write(self, data: Any) -> None:
        """Keep octets."""
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        """Return False."""
        return False

    def pause_reading(self) -> None:
        """Do nothing."""

    resume_reading = pause_reading


def test_pings_of_a_client_that_does_not_read() -> None:
    """The last one is answered when it reads again."""
    socket = Socket()
    websocket = WebSocket(socket, asyncio.Protocol(), "")
    websocket.pause_writing()
    for number in range(3):
        websocket.data_received(frame(PING, b"%d" % number))
    assert not socket.written
    websocket.resume_writing()
    assert socket.written == [b"\x8a\x012"]


@pytest.mark.parametrize(("origin", "user", "accepted"), [
    ("http://localhost", "guest", True), ("https://site.example", "guest", False),
    ("null", "guest", False), ("https://site.example", "page", True),
])  # fmt: skip
def test_pages_of_other_sites(port: int, origin: str, user: str, accepted: bool) -> None:
    """They log in with a user's password, but not as guest, whose password every page knows."""
    with RawWebSocket(port, hello=request(Origin=origin)) as client:
        assert client.status == 101
        code = client.send(connect("page", user=user, password=user)).expect(CONNACK)[1]
        assert code == (0 if accepted else 0x86)


async def test_over_tls_until_the_broker_stops(tmp_path: Path) -> None:
    """A client of the HTTPS port gets DISCONNECT and the close frame when the broker stops."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls = {"port": 0, "certfile": str(tmp_path / "cert.pem"), "keyfile": str(tmp_path / "key.pem")}
    mqtt = {"enabled": True, "port": 0, "tls_port": 0}
    http = {"enabled": True, "port": 0, "tls": True}
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with running_broker(tmp_path / "data", tls=tls, mqtt=mqtt, http=http) as broker:
        client = await asyncio.to_thread(RawWebSocket, broker.manage.port(), context)
        client.send(connect("tls"))
        assert (await asyncio.to_thread(client.expect, CONNACK))[1] == 0
        client.send(publish("a", b"x" * 50_000, 1))
        await asyncio.to_thread(client.expect, PUBACK)
    assert client.expect(DISCONNECT)[0] == 0x8B
    assert client.close_code() == 1000
    client.close()


async def test_limits_before_the_login(tmp_path: Path) -> None:
    """A client that sends nothing is dropped as over TCP, and one whose first packet is large is refused at once."""
    sections: dict[str, Any] = {"mqtt": {"enabled": True, "port": 0}, "http": {"enabled": True, "port": 0}}
    async with running_broker(tmp_path, server={"handshake_timeout_ms": 300}, **sections) as broker:

        def talk() -> None:
            with RawWebSocket(broker.manage.port()) as silent, RawWebSocket(broker.manage.port()) as large:
                large.send_frames(b"\x82\xff\0\0\x01" + bytes(5) + b"\0\0\0\0" + b"\x10\xff\xff\x7f")
                assert large.close_code() == 1000
                silent.send_frames(frame(PING, b"p"))
                assert silent.read_frame() == (PONG, b"p")
                assert silent.ends()

        await asyncio.to_thread(talk)
        assert broker.manage.clients() == 0


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_octets_that_are_no_frames(pieces: list[bytes]) -> None:
    """Whatever arrives, there is a payload, a code, or both."""
    frames = WebSocketFrames()
    for piece in pieces:
        frames.feed(piece)
        payload, more = frames.read(2)
        assert len(payload) <= 300 * len(pieces)
        assert not (more and frames.code)
    assert frames.code == 0 or 1000 <= frames.code < 5000


def test_frames_that_arrive_octet_by_octet() -> None:
    """The payload is the same however the octets are cut."""
    bodies = [b"", b"a", b"b" * 125, b"c" * 126, b"d" * 65_536]
    octets = frame(PING, b"p").join([frame(BINARY, body) for body in bodies])
    frames = WebSocketFrames()
    got = b""
    for at in range(len(octets)):
        frames.feed(octets[at : at + 1])
        got += frames.read(1)[0]
    assert got == b"".join(bodies)
    frames.feed(octets)
    assert frames.read(3) == (b"a", True)
    assert frames.read(100) == (b"".join(bodies[2:]), False)


REFUSED = {
    "no upgrade": (request(drop="Upgrade"), 426),
    "old version": (request(Sec_WebSocket_Version="8"), 426),
    "other subprotocol": (request(Sec_WebSocket_Protocol="mqttv3.1, soap"), 400),
    "no subprotocol": (request(drop="Sec-WebSocket-Protocol"), 400),
    "short key": (request(Sec_WebSocket_Key="YWJj"), 400),
    "no key": (request(drop="Sec-WebSocket-Key"), 400),
    "body": (request(Content_Length="5"), 400),
    "another site's name": (request(Host="evil.example"), 421),
}


@pytest.mark.parametrize("name", REFUSED)
def test_handshakes_that_are_refused(port: int, name: str) -> None:
    """Each gets a status, and the broker serves on."""
    hello, status = REFUSED[name]
    with RawWebSocket(port, hello=hello) as client:
        assert client.status == status
