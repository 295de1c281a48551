"""Flips one bit of the newest checkpoint, in memory or in a real folder."""

from __future__ import annotations

from pathlib import Path

from broker.store.memory_files import MemoryFiles
from tests.fault.faulty_files import TornContent


def flip_newest(files: MemoryFiles, folder: Path) -> bool:
    """Flip a bit in the middle of a store's newest checkpoint, on disk too; return False if there is none."""
    names = sorted(path for path in files.contents if path.parent == folder and path.match("checkpoint-??????????"))
    if not names:
        return False
    content = files.contents[names[-1]]
    for block in (content.block, content.durable) if isinstance(content, TornContent) else (content.block,):
        block[len(block) // 2] ^= 1
    return True


def flip_newest_of(folder: Path) -> Path:
    """Flip a bit in the middle of the newest checkpoint of a real store and return its path."""
    newest = max(folder.glob("checkpoint-??????????"))
    block = bytearray(newest.read_bytes())
    block[len(block) // 2] ^= 1
    newest.write_bytes(block)
    return newest
