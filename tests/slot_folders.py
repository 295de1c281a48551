"""Data folders with slot files and a seal log, written without a broker, and identical in every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pamqp import commands, header

from broker.slot_files.seal_log import FORMAT, Cursor, Released, Seal, decode_lines, encode_line
from broker.slot_files.seal_view import SealView
from broker.slot_files.slot_file import PERSISTENT, SlotMeta
from broker.slot_files.slot_file_writer import SlotFileWriter
from broker.slot_files.slot_folder import gap_of, seal_of
from broker.store.files import Files
from broker.store.record import encode_route

STORE: Final = "5107a0b1c2d3e4f5061728394a5b6c7d"
START_MS: Final = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC: the timestamp of message 0
STEP_MS: Final = 10
EXCHANGE: Final = "topic"


@dataclass(frozen=True, slots=True)
class TapMessage:
    """The content of a row. Shapes: without a header, its only property is delivery mode 2."""

    body: bytes = b""
    key: str = "a.b"
    exchange: str = EXCHANGE
    header: bytes | None = None
    timestamp_ms: int | None = None
    flags: int = PERSISTENT
    message_id: int | None = None


def content_header(body_bytes: int, **properties: Any) -> bytes:
    """Return the payload of a content header frame with these properties, under pamqp's names."""
    timestamp = properties.get("timestamp")
    if isinstance(timestamp, int):
        properties["timestamp"] = datetime.fromtimestamp(timestamp, UTC)
    return header.ContentHeader(0, body_bytes, commands.Basic.Properties(**properties)).marshal()


class SlotFolder:
    """A data folder to which slot files and lines of the seal log are written.

    Shapes: ``path`` is the data folder; the slots are in ``path/slots``. An existing folder is continued.
    """

    def __init__(self, path: Path, store: str = STORE, incarnation: str = "") -> None:
        self.path = path
        self.incarnation = incarnation
        self.slots = path / "slots"
        self.store = store
        self.log = self.slots / "seals.log"
        self._numbers: dict[tuple[str, str], int] = {}
        self._next_ids: dict[tuple[str, int], int] = {}
        self.slots.mkdir(parents=True, exist_ok=True)
        self.view = SealView()
        if not self.log.exists():
            self._append("store", {"format": FORMAT, "store": store, "last_seal": 0})
            return
        for line in decode_lines(self.log.read_bytes())[0]:
            self.view.fold(line)
        self.store = self.view.store
        for seal in self.view.seals:
            self._numbers[seal.vhost, seal.queue] = seal.number
            self._next_ids[seal.key] = seal.end

    def slot_path(self, seal: int) -> Path:
        """Return the path of a seal's slot file."""
        return self.slots / f"{seal:020}.slot"

    def add_slot(
        self,
        tap: str,
        messages: Iterable[TapMessage],
        *,
        vhost: str = "/",
        first: int | None = None,
        number: int | None = None,
    ) -> Seal:
        """Write a slot file and its log line; ids continue after the tap's last, or start at `first`.

        Shapes: `number` is that of the tap's queue from now on.
        """
        if number is not None:
            self._numbers[vhost, tap] = number
        number = self._numbers.setdefault((vhost, tap), len(self._numbers) + 1)
        start = self._next_ids.get((vhost, number), 1) if first is None else first
        seal = self.view.last_seal + 1
        meta = SlotMeta(self.store, seal, vhost, tap, number, start, incarnation=self.incarnation)
        writer = SlotFileWriter(Files(), self.slot_path(seal), meta)
        message_id = start
        for message in messages:
            message_id = message_id if message.message_id is None else message.message_id
            header = message.header
            if header is None:
                header = content_header(len(message.body), delivery_mode=2)
            timestamp_ms = message.timestamp_ms
            writer.add(
                message_id,
                START_MS + message_id * STEP_MS if timestamp_ms is None else timestamp_ms,
                message.flags,
                encode_route(message.exchange, message.key),
                header,
                message.body,
            )
            message_id += 1
        made = seal_of(*writer.finish(message_id))
        self._next_ids[made.key] = message_id
        self._append("seal", made.to_json())
        return made

    def damage(self, seal: int, mark: bytes = b"....") -> None:
        """Flip a bit of a slot file at the first occurrence of a mark."""
        block = bytearray(self.slot_path(seal).read_bytes())
        block[block.index(mark)] ^= 1
        self.slot_path(seal).write_bytes(block)

    def add_gap(self, seal: Seal, reason: str = "bytes") -> None:
        """Remove a slot file as the broker does at a size limit."""
        self.lose(seal, reason)
        self.release(seal)

    def lose(self, seal: Seal, reason: str) -> None:
        """Record the loss of a slot file, as a broker does that misses it at its start."""
        self._append("gap", gap_of(seal, reason).to_json())
        self.slot_path(seal.seal).unlink(missing_ok=True)

    def release(self, seal: Seal) -> None:
        """Remove the slot files of a tap up to a seal."""
        earlier = [one for one in self.view.of_queue(seal.key) if one.seal <= seal.seal]
        self._append("released", Released(seal.vhost, seal.queue, seal.number, seal.seal).to_json())
        for one in (*earlier, seal):
            self.slot_path(one.seal).unlink(missing_ok=True)

    def set_cursor(self, name: str, tap: str, seal: int, *, vhost: str = "/", at_ms: int = START_MS) -> None:
        """Write the position of a cursor."""
        self._append("cursor", Cursor(name, vhost, tap, seal, at_ms).to_json())

    def remove_cursor(self, name: str, tap: str, *, vhost: str = "/") -> None:
        """Remove a cursor."""
        self._append("cursor_removed", {"name": name, "vhost": vhost, "tap": tap})

    def _append(self, kind: str, fields: dict[str, Any]) -> None:
        with self.log.open("ab") as log:
            log.write(encode_line(kind, fields))
        self.view.fold({"k": kind, **fields})


def make_slots(path: Path, slots: Sequence[Sequence[TapMessage]]) -> SlotFolder:
    """Return a data folder with one slot file of the tap `audit` for each list of messages."""
    folder = SlotFolder(path)
    for messages in slots:
        folder.add_slot("audit", messages)
    return folder


def numbered(count: int, *, start: int = 0, keys: int = 10, body_bytes: int = 20) -> Iterator[TapMessage]:
    """Yield messages with keys k.0, k.1 ... whose bodies are their numbers, padded with dots."""
    for number in range(start, start + count):
        yield TapMessage((b"%d" % number).ljust(body_bytes, b"."), f"k.{number % keys}")
