"""Records RabbitMQ's answers again: `.venv/bin/python -m tests.differential.record [family ...]`.

Plays everything twice; conversations whose answers differ between the two runs are named and left out. For RabbitMQ 4
only the answers that differ from the recorded 3.10 are written.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.differential.everything import CONVERSATIONS
from tests.differential.oracle import major_version, running_oracle
from tests.differential.play import RECORDED_3_10, RECORDED_4_3, play_all, read_recordings, write_recordings
from tests.differential.speaker import Transcript
from tests.differential.talk import Manner

RECORDING = Manner(quiet_ms=150, patience_ms=3000)


def main(families: list[str]) -> int:
    """Record the families, or all; return the number of conversations that could not be recorded."""
    wanted = [one for one in CONVERSATIONS.values() if not families or one.name.split("/")[0] in families]
    with tempfile.TemporaryDirectory() as folder, running_oracle(Path(folder) / "rabbitmq") as address:
        first = play_all(wanted, address, RECORDING, at_once=24)
        second = play_all(wanted, address, RECORDING, at_once=8)
        major = major_version(address)
    recorded: dict[str, Transcript] = {}
    for name, said in first.items():
        if isinstance(said, str):
            print(f"{name}: {said}")
        elif said != second[name]:
            print(f"{name}: the two runs differ")
            for number, lines in enumerate(said):
                if lines != second[name][number]:
                    print(f"  step {number}: {lines}\n      then: {second[name][number]}")
                    break
        else:
            recorded[name] = said
    print(f"recorded {len(recorded)} of {len(wanted)} conversations")
    if major < 4:
        write_recordings([one for one in wanted if one.name in recorded], recorded, RECORDED_3_10)
    else:
        older = read_recordings(wanted, RECORDED_3_10)
        others = [one for one in wanted if one.name in recorded and recorded[one.name] != older.get(one.name)]
        for family in {one.name.split("/")[0] for one in wanted}:
            (RECORDED_4_3 / f"{family}.json").unlink(missing_ok=True)
        write_recordings(others, recorded, RECORDED_4_3)
        print(f"{len(others)} of them differ from the answers of 3.10")
    return len(wanted) - len(recorded)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
