"""Fuzzes the frame parser against a slow reference of fifteen lines.

python -m fuzz.framing --inputs 1000000 --seed 7
"""

from __future__ import annotations

import sys
from random import Random

from broker.amqp.errors import ConnectionFault
from broker.amqp.framing import FrameCutter
from fuzz.campaign import main
from fuzz.grammar import conversation, frame
from fuzz.mutation import pieces, spoil

Frame = tuple[int, int, bytes]


def reference(octets: bytes, limit_bytes: int) -> tuple[list[Frame], str]:
    """Return the frames of the octets, and the state of their end: broken, or an incomplete rest."""
    found: list[Frame] = []
    while len(octets) >= 7:
        size = int.from_bytes(octets[3:7], "big")
        if size > limit_bytes:
            return found, "too large"
        if len(octets) < size + 8:
            break
        if octets[7 + size] != 0xCE:
            return found, "wrong end"
        found.append((octets[0], int.from_bytes(octets[1:3], "big"), octets[7 : 7 + size]))
        octets = octets[8 + size :]
    return found, "whole" if not octets else "rest"


def check(rng: Random) -> str:
    """Parse one mutated conversation, and return its outcome."""
    frames = conversation(rng)
    spoil(rng, frames)
    if rng.random() < 0.1:
        large = frame(3, 1, rng.randbytes(rng.choice([8192, 8193, 20000, 100_000])))
        frames.insert(rng.randrange(len(frames) + 1), large)
    octets = b"".join(frames)
    limit_bytes = rng.choice([100, 4096, 8192, 131072])
    expected, ending = reference(octets, limit_bytes)
    cutter = FrameCutter(limit_bytes)
    found: list[Frame] = []
    parts = b""  # of the large body frame that comes next
    code = 0
    try:
        for chunk in pieces(rng, octets):
            cutter.feed(chunk)
            more = True
            while more:
                budget_bytes = rng.choice([None, 1, 50])
                for kind, channel, payload, run in cutter.frames(budget_bytes):
                    if run is None:
                        found.append((kind, channel, payload))
                    elif isinstance(run, memoryview):
                        parts += run
                        if len(found) < len(expected) and len(parts) == len(expected[len(found)][2]):
                            found.append((kind, channel, parts))
                            parts = b""
                    else:
                        taken = len(run.bodies)
                        if rng.random() < 0.3:
                            taken = rng.randrange(1, taken + 1)
                            cutter.take_back(run, taken)
                        for method, header, body in zip(run.payloads, run.headers, run.bodies, strict=True):
                            if taken:
                                taken -= 1
                                found += [(1, channel, method), (2, channel, header), (3, channel, body)]
                    if rng.random() < 0.1:
                        break
                more = cutter.has_frame
    except ConnectionFault as error:
        code = error.reply_code
    assert found == expected
    assert code == (501 if ending in ("too large", "wrong end") else 0), ending
    assert cutter.broken == (code == 501)
    if not code:
        cut_bytes = sum(len(payload) + 8 for _, _, payload in found) + (len(parts) + 7 if parts else 0)
        assert cutter.buffered_bytes == len(octets) - cut_bytes
    return ending


if __name__ == "__main__":
    sys.exit(main("framing", check))
