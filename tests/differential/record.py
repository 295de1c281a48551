"""Records RabbitMQ's answers anew: `.venv/bin/python -m tests.differential.record [family ...]`.

Plays everything twice; what the second playing says otherwise is named and kept out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.differential.everything import CONVERSATIONS
from tests.differential.oracle import running_oracle
from tests.differential.play import play_all, write_recordings
from tests.differential.speaker import Transcript
from tests.differential.talk import Manner

RECORDING = Manner(quiet_ms=150, patience_ms=3000)


def main(families: list[str]) -> int:
    """Returns how many conversations could not be recorded."""
    wanted = [one for one in CONVERSATIONS.values() if not families or one.name.split("/")[0] in families]
    with tempfile.TemporaryDirectory() as folder, running_oracle(Path(folder) / "rabbitmq") as address:
        first = play_all(wanted, address, RECORDING, at_once=24)
        second = play_all(wanted, address, RECORDING, at_once=8)
    recorded: dict[str, Transcript] = {}
    for name, said in first.items():
        if isinstance(said, str):
            print(f"{name}: {said}")
        elif said != second[name]:
            print(f"{name} is not the same twice")
            for number, lines in enumerate(said):
                if lines != second[name][number]:
                    print(f"  step {number}: {lines}\n      then: {second[name][number]}")
                    break
        else:
            recorded[name] = said
    write_recordings([one for one in wanted if one.name in recorded], recorded)
    print(f"recorded {len(recorded)} of {len(wanted)} conversations")
    return len(wanted) - len(recorded)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
