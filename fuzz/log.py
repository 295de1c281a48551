"""Fuzzes recovery with damaged logs: transactions are recovered whole or not at all, and messages unchanged.

python -m fuzz.log --inputs 100000 --seed 7
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from structlog.testing import capture_logs

from broker.store.checkpoint import SlotState
from broker.store.damage import CorruptStore
from broker.store.memory_files import MemoryFiles
from broker.store.record import TARGET, encode_message, encode_route, encode_settled
from broker.store.recovery import Recovered
from broker.store.segment import OFFSET_MASK
from broker.store.store import VhostStore
from fuzz.campaign import main
from tests.stored_record import read_slot

FOLDER = Path("/store")
QUEUES = (1, 2)
ROUTE = encode_route("x", "k")
WINDOW_MESSAGES = 8

Place = tuple[int, int]  # queue number, message id


class Writer:
    """Fills a log. Shapes: ``transactions`` holds what each published and settled; ``boundaries`` are file offsets."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.files = MemoryFiles()
        self.segment_bytes = rng.choice((500, 3000, 1 << 20))
        self.store, _ = self.open(quarantine=False)
        self.next_ids = dict.fromkeys(QUEUES, 1)
        self.alone: list[Place] = []
        self.transactions: list[tuple[list[Place], list[Place]]] = []
        self.boundaries: list[tuple[int, int]] = []

    def open(self, *, quarantine: bool) -> tuple[VhostStore, Recovered]:
        """Open the store."""
        return VhostStore.open(
            self.files,
            FOLDER,
            segment_bytes=self.segment_bytes,
            sync=True,
            quarantine=quarantine,
            window_messages=WINDOW_MESSAGES,
        )

    def append(self, record: bytes) -> None:
        """Append a record."""
        position = self.store.log.append(record)
        self.boundaries.append((position >> 32, position & OFFSET_MASK))

    def publish(self) -> list[Place]:
        """Append a message of one queue or both; its body names its places."""
        places = [(queue, self.next_ids[queue]) for queue in self.rng.sample(QUEUES, self.rng.randint(1, 2))]
        for queue, message_id in places:
            self.next_ids[queue] = message_id + 1
        body = repr(places).encode().ljust(self.rng.choice((0, 64, 128, 300)))
        targets = b"".join([TARGET.pack(*place) for place in places])
        self.append(encode_message(self.store.log.synced, 1, 1, ROUTE, b"h", body, targets))
        return places

    def transaction(self) -> None:
        """Append several messages and the settlement of an older one as one transaction."""
        published: list[Place] = []
        settled: list[Place] = []
        with self.store.log.group():
            for _ in range(self.rng.randint(1, 4)):
                published += self.publish()
                if self.alone and self.rng.random() < 0.4:
                    settled.append(self.alone.pop(self.rng.randrange(len(self.alone))))
                    self.append(encode_settled(self.store.log.synced, 1, settled[-1][0], [settled[-1][1]]))
        self.transactions.append((published, settled))

    def write(self) -> None:
        """Write some batches."""
        for _ in range(self.rng.randint(2, 5)):
            for _ in range(self.rng.randint(1, 6)):
                if self.rng.random() < 0.5:
                    self.transaction()
                else:
                    self.alone += self.publish()
            batch = self.store.log.take()
            assert batch is not None
            self.store.log.write(batch)
            self.store.log.complete(batch)
        self.store.close()

    def spoil(self) -> None:
        """Damage a segment in one place."""
        rng = self.rng
        log = [content.block for path, content in sorted(self.files.contents.items()) if path.suffix == ".log"]
        block = rng.choice(log)
        at = rng.randrange(max(len(block), 1))
        kind = rng.random()
        if not block:
            return
        if kind < 0.3:
            block[at] ^= 1 << rng.randrange(8)
        elif kind < 0.5:
            size = rng.choice((1, 4, 40, 512))
            block[at : at + size] = rng.randbytes(len(block[at : at + size]))
        elif kind < 0.6:
            del block[at:]
        elif kind < 0.7:
            block[at:] = bytes(len(block) - at)
        else:  # a length that ends where another record begins, perhaps within a transaction
            segment, begin = rng.choice(self.boundaries)
            offsets = [offset for number, offset in self.boundaries if number == segment and offset > begin]
            held = self.files.contents[FOLDER / "log" / f"{segment:010d}.log"].block
            if offsets and begin + 4 <= len(held):
                held[begin : begin + 4] = (rng.choice(offsets) - begin - 8).to_bytes(4, "big")


def check(rng: Random) -> str:
    """Recover one damaged log, and return the outcome."""
    writer = Writer(rng)
    writer.write()
    for _ in range(rng.randint(1, 3)):
        writer.spoil()
    quarantine = rng.random() < 0.7
    with capture_logs():
        try:
            store, recovered = writer.open(quarantine=quarantine)
        except CorruptStore:
            assert not quarantine, "quarantine starts whatever is damaged"
            return "refused"
        waiting = read(store, recovered)
    for published, settled in writer.transactions:
        there = [place in waiting for place in published]
        assert all(there) or not any(there), f"half of {published} is there"
        assert not any(there) or not any(place in waiting for place in settled), f"{settled} are back"
    return max((finding.event for finding in recovered.findings), default="unharmed")


def read(store: VhostStore, recovered: Recovered) -> set[Place]:
    """Return which messages are ready; each must equal its published message."""
    found: set[Place] = set()
    for queue, state in recovered.queues.items():
        for slot in state.slots:
            for index, message in enumerate(read_slot(store, queue, slot.first, slot.end, unsettled(slot))):
                if message is not None:
                    assert repr((queue, slot.first + index)).encode() in message.body
                    found.add((queue, slot.first + index))
    return found


def unsettled(slot: SlotState) -> list[int]:
    """Return the indexes of a slot's unsettled messages."""
    bits = int.from_bytes(slot.settled, "little")
    return [index for index in range(slot.end - slot.first) if not bits >> index & 1]


if __name__ == "__main__":
    sys.exit(main("log", check))
