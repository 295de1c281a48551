"""Plays many conversations at once, and stores RabbitMQ's answers as JSON files.

All answers of 3.10 are stored; those of 4.3 only for conversations in which they differ from 3.10.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.broker_process import BrokerAddress
from tests.differential.speaker import Speaker, Transcript
from tests.differential.steps import PREFIX_LENGTH, Conversation
from tests.differential.talk import Manner

__all__ = ["RECORDED_3_10", "RECORDED_4_3", "play_all", "read_recordings", "recorded_names", "write_recordings"]

RECORDED_3_10 = Path(__file__).parent / "recorded"
RECORDED_4_3 = Path(__file__).parent / "recorded_4_3"


def play_all(
    conversations: Iterable[Conversation],
    address: BrokerAddress,
    manner: Manner,
    *,
    expected: Mapping[str, Transcript] | None = None,
    at_once: int = 16,
) -> dict[str, Transcript | str]:
    """Return the broker's answers in each conversation, or a text for one that could not be completed."""
    nonce = os.urandom(2).hex()

    async def one(number: int, conversation: Conversation, places: asyncio.Semaphore) -> tuple[str, Transcript | str]:
        prefix = f"{nonce}{number:03x}."
        assert len(prefix) == PREFIX_LENGTH
        async with places:
            speaker = Speaker(conversation, address, manner, prefix)
            try:
                async with asyncio.timeout(60):
                    return conversation.name, await speaker.play((expected or {}).get(conversation.name))
            except (AssertionError, OSError, TimeoutError, KeyError, ValueError, AttributeError) as error:
                return conversation.name, f"{type(error).__name__}: {error}"

    async def everything() -> dict[str, Transcript | str]:
        places = asyncio.Semaphore(at_once)
        return dict(await asyncio.gather(*(one(number, given, places) for number, given in enumerate(conversations))))

    return asyncio.run(everything())


def write_recordings(conversations: Iterable[Conversation], said: Mapping[str, Transcript], folder: Path) -> None:
    """Write the answers, one file per family and one line per step, so that a change is readable as a diff."""
    families: dict[str, dict[str, list[list[object]]]] = {}
    for conversation in conversations:
        steps = [*map(str, conversation.steps), "contents"]
        rows: list[list[object]] = [[step, *lines] for step, lines in zip(steps, said[conversation.name], strict=True)]
        families.setdefault(conversation.name.split("/")[0], {})[conversation.name] = rows
    folder.mkdir(exist_ok=True)
    for family, recorded in families.items():
        blocks = []
        for name in sorted(recorded):
            rows_text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in recorded[name])
            blocks.append(f"{json.dumps(name)}: [\n{rows_text}\n]")
        (folder / f"{family}.json").write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def read_recordings(conversations: Iterable[Conversation], folder: Path) -> dict[str, Transcript]:
    """Return the recorded answers of the conversations that have not changed since the recording."""
    recorded = _read_all(folder)
    found = {}
    for conversation in conversations:
        rows = recorded.get(conversation.name)
        if rows is not None and [row[0] for row in rows] == [*map(str, conversation.steps), "contents"]:
            found[conversation.name] = [row[1:] for row in rows]
    return found


def recorded_names(folder: Path) -> set[str]:
    """Return the names of all recorded conversations, including those that were changed or removed since."""
    return set(_read_all(folder))


def _read_all(folder: Path) -> dict[str, list[list[str]]]:
    recorded: dict[str, list[list[str]]] = {}
    for path in sorted(folder.glob("*.json")):
        recorded |= json.loads(path.read_text(encoding="utf-8"))
    return recorded
