"""Mutators: each changes a list of frames in one way, by the known positions of headers, lengths and ends."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from random import Random

Frames = list[bytes]
Mutator = Callable[[Random, Frames], None]

OCTETS = [0x00, 0x01, 0x7F, 0x80, 0xCE, 0xFF]
NUMBERS = [0, 1, 2, 7, 8, 255, 256, 4095, 4096, 65535, 131072, 131073, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]


def some(rng: Random, frames: Frames) -> int:
    """Return the index of a random frame."""
    return rng.randrange(len(frames))


def put(frames: Frames, place: int, at: int, octets: bytes) -> None:
    """Overwrite octets of a frame, without changing its length."""
    old = frames[place]
    frames[place] = old[:at] + octets[: len(old) - at] + old[at + len(octets) :]


def flip_bit(rng: Random, frames: Frames) -> None:
    """Flip a random bit."""
    place = some(rng, frames)
    at = rng.randrange(len(frames[place]))
    put(frames, place, at, bytes([frames[place][at] ^ 1 << rng.randrange(8)]))


def set_octet(rng: Random, frames: Frames) -> None:
    """Set an octet to a value that is often special."""
    place = some(rng, frames)
    put(frames, place, rng.randrange(len(frames[place])), bytes([rng.choice(OCTETS)]))


def set_number(rng: Random, frames: Frames) -> None:
    """Write a boundary value over a short, a long or a long long."""
    place = some(rng, frames)
    layout, bits = rng.choice([(">H", 16), (">I", 32), (">Q", 64)])
    number = rng.choice([*NUMBERS, (1 << 64) - 1]) & (1 << bits) - 1
    put(frames, place, rng.randrange(len(frames[place])), struct.pack(layout, number))


def change_size(rng: Random, frames: Frames) -> None:
    """Change the payload size in a frame header, by one or by much."""
    place = some(rng, frames)
    size = max(len(frames[place]) - 8, 1)
    put(frames, place, 3, struct.pack(">I", rng.choice([size - 1, size + 1, *NUMBERS])))


def change_type(rng: Random, frames: Frames) -> None:
    """Give a frame another type."""
    put(frames, some(rng, frames), 0, bytes([rng.choice([0, 1, 2, 3, 4, 8, 255])]))


def change_channel(rng: Random, frames: Frames) -> None:
    """Move a frame to another channel."""
    put(frames, some(rng, frames), 1, struct.pack(">H", rng.choice([0, 1, 2, 3, 2047, 2048, 65535])))


def change_end(rng: Random, frames: Frames) -> None:
    """Change the end octet of a frame."""
    place = some(rng, frames)
    put(frames, place, len(frames[place]) - 1, rng.randbytes(1))


def cut_payload(rng: Random, frames: Frames) -> None:
    """Shorten a payload and adjust its header."""
    place = some(rng, frames)
    kind, channel = struct.unpack_from(">BH", frames[place].ljust(3, b"\x00"))
    payload = frames[place][7:-1]
    payload = payload[: rng.randrange(len(payload) + 1)]
    frames[place] = struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def stretch_payload(rng: Random, frames: Frames) -> None:
    """Insert octets into a payload and adjust its header."""
    place = some(rng, frames)
    kind, channel = struct.unpack_from(">BH", frames[place].ljust(3, b"\x00"))
    payload = frames[place][7:-1]
    at = rng.randrange(len(payload) + 1)
    payload = payload[:at] + rng.randbytes(rng.choice([1, 2, 8])) + payload[at:]
    frames[place] = struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def insert_octets(rng: Random, frames: Frames) -> None:
    """Insert random octets between frames."""
    frames.insert(some(rng, frames), rng.randbytes(rng.choice([1, 7, 8, 30])))


def drop_frame(rng: Random, frames: Frames) -> None:
    """Remove a frame."""
    if len(frames) > 1:
        del frames[some(rng, frames)]


def repeat_frame(rng: Random, frames: Frames) -> None:
    """Repeat a frame at another position."""
    frames.insert(some(rng, frames), frames[some(rng, frames)])


def swap_frames(rng: Random, frames: Frames) -> None:
    """Swap two frames."""
    first, second = some(rng, frames), some(rng, frames)
    frames[first], frames[second] = frames[second], frames[first]


def stop_early(rng: Random, frames: Frames) -> None:
    """Cut the frames off inside a frame."""
    place = some(rng, frames)
    del frames[place + 1 :]
    frames[place] = frames[place][: rng.randrange(1, len(frames[place]) + 1)]


MUTATORS: list[Mutator] = [
    flip_bit,
    set_octet,
    set_number,
    change_size,
    change_type,
    change_channel,
    change_end,
    cut_payload,
    stretch_payload,
    insert_octets,
    drop_frame,
    repeat_frame,
    swap_frames,
    stop_early,
]


def spoil(rng: Random, frames: Frames, first: int = 0) -> None:
    """Apply up to three mutators to the frames from `first` on; leave one conversation in ten unchanged."""
    spoiled = frames[first:]
    for _ in range(rng.choice([0, 1, 1, 1, 1, 1, 2, 2, 3, 3])):
        rng.choice(MUTATORS)(rng, spoiled)
    frames[first:] = spoiled


def pieces(rng: Random, octets: bytes) -> list[bytes]:
    """Return the octets in chunks as a network might deliver them: whole, in a few pieces, or in many."""
    if rng.random() < 0.5 or not octets:
        return [octets]
    cuts = sorted({0, len(octets), *(rng.randrange(len(octets) + 1) for _ in range(rng.choice([1, 3, 20])))})
    return [octets[start:end] for start, end in pairwise(cuts)]
