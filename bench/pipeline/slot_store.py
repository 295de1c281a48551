"""A data folder with slot files of random messages, as a broker with a tap would have written them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from broker.perf import wire
from broker.slot_files.seal_log import Seal
from broker.slot_files.slot_file import PERSISTENT
from broker.slot_files.slot_folder import SlotFolder
from broker.store.files import Files
from broker.store.record import encode_route

EXCHANGE = "bench"
TAP = "bench"
_HEAD_AT = 7
_DAY_MS = 86_400_000
_ROWS_PER_MS = 1000
_SEED = 20_260_101


class SlotStore:
    """The slots of a growing data folder: bodies are random, keys come in turn."""

    def __init__(self, path: Path, keys: Sequence[str], *, body_bytes: int, slot_rows: int, now_ms: int) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._folder = SlotFolder.open(Files(), path / "slots", sync=False)
        self._routes = [encode_route(EXCHANGE, key) for key in keys]
        self._header = _content_header(body_bytes)
        self._body_bytes = body_bytes
        self._slot_rows = slot_rows
        self._begin_ms = now_ms // _DAY_MS * _DAY_MS - _DAY_MS  # yesterday, so that all messages are of one day
        self._next_id = 1
        self._random = Random(_SEED)

    @property
    def slots(self) -> list[Seal]:
        """Return the existing slot files."""
        return self._folder.view.seals

    @property
    def size_bytes(self) -> int:
        """Return the size of the slot files."""
        return sum(seal.bytes for seal in self.slots)

    def add(self, rows: int) -> None:
        """Write slot files with `rows` more messages."""
        end = self._next_id + rows
        while self._next_id < end:
            self._add_slot(min(self._slot_rows, end - self._next_id))

    def _add_slot(self, rows: int) -> None:
        first, size, routes, header = self._next_id, self._body_bytes, self._routes, self._header
        block = self._random.randbytes(rows * size)
        draft = self._folder.draft("/", TAP, 1, first)
        add = draft.writer.add
        for row in range(rows):
            number = first + row
            route = routes[number * 7919 % len(routes)]
            body = block[row * size : (row + 1) * size]
            add(number, self._begin_ms + number // _ROWS_PER_MS, PERSISTENT, route, header, body)
        self._next_id += rows
        self._folder.seal(draft, self._next_id)

    def remove_all(self) -> None:
        """Remove all slot files, as when every cursor has passed them."""
        self._folder.remove(self.slots)

    def close(self) -> None:
        """Release the folder, so that a broker can open it."""
        self._folder.close()


def _content_header(body_bytes: int) -> bytes:
    """Return the content header of a persistent message, without its frame."""
    frame = wire.content(1, bytes(body_bytes), persistent=True)
    size = int.from_bytes(frame[3:_HEAD_AT], "big")
    return frame[_HEAD_AT : _HEAD_AT + size]
