"""Plays conversations with a broker, many at once, and returns its packets as lines comparable between two brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.mqtt.mosquitto.conversations import CONVERSATIONS, Answer, Step

__all__ = ["RECORDED", "Transcript", "play", "read_recording", "step_texts", "write_recording"]

Transcript: TypeAlias = list[list[str]]
RECORDED: Final = Path(__file__).with_name("recorded.json")
PATIENCE_S: Final = 2.0
NAMES: Final = (
    "- CONNECT CONNACK PUBLISH PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK UNSUBSCRIBE UNSUBACK PINGREQ PINGRESP "
    "DISCONNECT AUTH"
).split()
OWN: Final = {
    "MaximumPacketSize",
    "MaximumQoS",
    "ReasonString",
    "ReceiveMaximum",
    "RetainAvailable",
    "ServerKeepAlive",
    "SharedSubscriptionAvailable",
    "SubscriptionIdentifierAvailable",
    "TopicAliasMaximum",
    "WildcardSubscriptionAvailable",
}
"""Properties not compared: a broker's limits in a CONNACK, and its texts."""
CODES: Final = {0x81: "malformed", 0x82: "malformed", 0x10: "0x00"}
"""Brokers choose between these error codes differently; 0x10 (no subscribers) depends on other conversations."""


class Talker:
    """One connection and its received packets, of which the first `reported` are in the transcript."""

    def __init__(
        self, me: str, news: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, octets: bytes
    ) -> None:
        self._me = me.encode()
        self._news = news
        self.writer = writer
        self.version = 5 if octets[2:].startswith(b"\0\4MQTT\5") or octets[3:].startswith(b"\0\4MQTT\5") else 4
        self.heard: list[tuple[int, bytes]] = []
        self.reported = 0
        self.task = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                first, size, shift = (await reader.readexactly(1))[0], 0, 0
                while True:
                    octet = (await reader.readexactly(1))[0]
                    size |= (octet & 0x7F) << shift
                    shift += 7
                    if octet < 0x80:
                        break
                body = await reader.readexactly(size)
                if first >> 4 != PacketTypes.PUBLISH or self._me in body:  # `#` matches other conversations
                    self.heard.append((first, body))
                    self._news.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.heard.append((0, b""))
            self._news.set()


class Conversation:
    """The state of one conversation: its connections, and the packet ids used by the broker."""

    def __init__(self, name: str, port: int, quiet_s: float, expected: Transcript | None) -> None:
        self._me = name
        self._news = asyncio.Event()
        self._port = port
        self._quiet_s = quiet_s
        self._expected = expected
        self._talkers: dict[str, Talker] = {}
        self._packet_ids: dict[str, list[int]] = {}

    async def play(self, steps: list[Step]) -> Transcript:
        """Return the lines of each step."""
        transcript: Transcript = []
        try:
            for number, (name, said) in enumerate(steps):
                await self._say(name, said)
                wanted = None
                if self._expected is not None and number < len(self._expected):
                    wanted = len(self._expected[number])
                await self._listen(wanted)
                transcript.append([line for name in sorted(self._talkers) for line in self._lines(name)])
            return transcript
        finally:
            for talker in self._talkers.values():
                talker.task.cancel()
                talker.writer.close()

    async def _say(self, name: str, said: bytes | Answer | float | None) -> None:
        if isinstance(said, float):
            await asyncio.sleep(said)
            return
        if name not in self._talkers:
            assert isinstance(said, bytes)
            self._talkers[name] = Talker(
                self._me, self._news, *await asyncio.open_connection("127.0.0.1", self._port), said
            )
        talker = self._talkers[name]
        if said is None:
            talker.writer.transport.abort()
            talker.task.cancel()
        elif isinstance(said, Answer):
            ids = self._packet_ids.get(name[0], [])
            talker.writer.write(said.octets(ids[said.number - 1] if said.number <= len(ids) else 0xFFFF))
        else:
            talker.writer.write(said)

    async def _listen(self, wanted: int | None) -> None:
        """Wait until the expected number of packets has arrived, and then for silence."""
        if wanted is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    while self._count() < wanted:
                        self._news.clear()
                        await self._news.wait()
        with suppress(TimeoutError):
            while True:
                self._news.clear()
                async with asyncio.timeout(self._quiet_s):
                    await self._news.wait()

    def _count(self) -> int:
        return sum(len(talker.heard) - talker.reported for talker in self._talkers.values())

    def _lines(self, name: str) -> list[str]:
        talker = self._talkers[name]
        new = talker.heard[talker.reported :]
        talker.reported = len(talker.heard)
        ids = self._packet_ids.setdefault(name[0], [])
        # Sorted into answers, acknowledgements of publishes, and deliveries by QoS: only within each is the order
        # guaranteed. Retained messages are sorted by content.
        found = []
        for number, (first, body) in enumerate(new):
            kind, lane = first >> 4, 0
            if kind in (4, 5, 7):
                lane = 1
            elif kind in (3, 6):
                lane = 2 + (first & 6 if kind == 3 else 4)
            found.append(((lane, first & 1, body if first & 0xF1 == 0x31 else b"", number), first, body))
        said = [f"{name} {packet_line(first, body, talker.version, ids)}" for _, first, body in sorted(found)]
        return [line.replace(self._me, "~") for line in said]


def packet_line(first: int, body: bytes, version: int, ids: list[int]) -> str:
    """Return a packet as a line; the broker's packet ids are replaced with the numbers of their first occurrence."""
    kind = first >> 4
    if not first:
        return "closed"
    if kind == 3:
        end = 2 + int.from_bytes(body[:2], "big")
        said = [f"PUBLISH {body[2:end].decode()}", *(f"qos={first >> 1 & 3}" for _ in "1" if first & 6)]
        said += [word for bit, word in ((1, "retain"), (8, "dup")) if first & bit]
        if first & 6:
            said.append(_number(int.from_bytes(body[end : end + 2], "big"), ids))
            end += 2
        properties, end = _properties(kind, body, end, version)
        return " ".join([*said, *properties, repr(body[end:])])
    if kind == 2:
        properties, _ = _properties(kind, body, 2, version)
        return " ".join([f"CONNACK {_code(body[1])}", *(["present"] if body[0] else []), *properties])
    said, end = [NAMES[kind]], 0
    if kind in (4, 5, 6, 7, 9, 11):
        packet_id = int.from_bytes(body[:2], "big")
        said.append(_number(packet_id, ids) if kind == 6 else str(packet_id))
        end = 2
    if kind in (9, 11):
        properties, end = _properties(kind, body, end, version)
        return " ".join([*said, *properties, body[end:].hex(" ")])
    if end < len(body):
        said.append(_code(body[end]))
        said += _properties(kind, body, end + 1, version)[0]
    return " ".join(one for one in said if one != "0x00")


def _code(reason_code: int) -> str:
    return CODES.get(reason_code) or f"{reason_code:#04x}"


def _number(packet_id: int, ids: list[int]) -> str:
    if packet_id not in ids:
        ids.append(packet_id)
    return f"#{ids.index(packet_id) + 1}"


def _properties(kind: int, body: bytes, at: int, version: int) -> tuple[list[str], int]:
    if version != 5 or at >= len(body):
        return [], at
    properties = Properties(kind if kind != PacketTypes.AUTH else PacketTypes.DISCONNECT)
    _, size = properties.unpack(body[at:])
    found: dict[str, Any] = properties.json()
    if "AssignedClientIdentifier" in found:
        found["AssignedClientIdentifier"] = "<id>"
    if "MessageExpiryInterval" in found:
        found["MessageExpiryInterval"] = found["MessageExpiryInterval"] & ~0xFF
    return [f"{key}={value}" for key, value in sorted(found.items()) if key not in OWN], at + size


def play(
    port: int, names: Iterable[str], quiet_s: float, *, expected: Mapping[str, Transcript] | None = None
) -> dict[str, Transcript | str]:
    """Return the broker's answers in each conversation, or a text for one that could not be completed."""

    async def one(name: str, places: asyncio.Semaphore) -> tuple[str, Transcript | str]:
        async with places:
            conversation = Conversation(name, port, quiet_s, (expected or {}).get(name))
            try:
                return name, await conversation.play(CONVERSATIONS[name])
            except (AssertionError, OSError, ValueError) as error:
                return name, f"{type(error).__name__}: {error}"

    async def everything() -> dict[str, Transcript | str]:
        places = asyncio.Semaphore(24)
        return dict(await asyncio.gather(*(one(name, places) for name in names)))

    return asyncio.run(everything())


def step_texts(me: str) -> list[str]:
    """Return the steps of a conversation in the form of its recording."""
    return [f"{name} {said!r}".replace(me, "~") for name, said in CONVERSATIONS.get(me, [])]


def write_recording(said: Mapping[str, Transcript]) -> None:
    """Write Mosquitto's answers, one line per step."""
    blocks = []
    for name, lines in sorted(said.items()):
        rows = [json.dumps([step, *found]) for step, found in zip(step_texts(name), lines, strict=True)]
        blocks.append(f"{json.dumps(name)}: [\n" + ",\n".join(rows) + "\n]")
    RECORDED.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def read_recording() -> dict[str, Transcript]:
    """Return the recorded answers of the conversations that have not changed since the recording."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {
        name: [row[1:] for row in rows]
        for name, rows in recorded.items()
        if [row[0] for row in rows] == step_texts(name)
    }
