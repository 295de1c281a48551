"""Records Mosquitto's answers again: `.venv/bin/python -m tests.mqtt.mosquitto.record`, with Debian's mosquitto.

Plays everything twice; conversations whose answers differ between the two runs are named and left out.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.mqtt.mosquitto.conversations import CONVERSATIONS
from tests.mqtt.mosquitto.play import Transcript, play, write_recording

CONFIGURATION: Final = """\
listener {port} 127.0.0.1
allow_anonymous false
password_file {folder}/passwords
persistence false
"""
QUIET_S: Final = 0.2


@contextmanager
def mosquitto() -> Iterator[int]:
    """Run Mosquitto with the user guest, and yield its port."""
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as taken:
        folder, port = Path(name), taken.getsockname()[1]
        taken.close()
        (folder / "passwords").touch()
        folder.chmod(0o755)
        subprocess.run(["mosquitto_passwd", "-b", folder / "passwords", "guest", "guest"], check=True)
        (folder / "passwords").chmod(0o644)
        (folder / "configuration").write_text(CONFIGURATION.format(port=port, folder=folder))
        with subprocess.Popen(["mosquitto", "-c", folder / "configuration"], stderr=subprocess.DEVNULL) as process:
            try:
                for _ in range(500):
                    try:
                        socket.create_connection(("127.0.0.1", port)).close()
                        break
                    except ConnectionError:
                        time.sleep(0.01)
                yield port
            finally:
                process.kill()


def main() -> int:
    """Write the recording, and return the number of conversations that could not be recorded."""
    runs = []
    for _ in range(2):
        with mosquitto() as port:
            runs.append(play(port, CONVERSATIONS, QUIET_S))
    recorded: dict[str, Transcript] = {}
    for name, said in runs[0].items():
        if isinstance(said, str) or said != runs[1][name]:
            print(f"{name}: {said}\n  then {runs[1][name]}")
        else:
            recorded[name] = said
    write_recording(recorded)
    print(f"recorded {len(recorded)} of {len(CONVERSATIONS)} conversations")
    return len(CONVERSATIONS) - len(recorded)


if __name__ == "__main__":
    sys.exit(bool(main()))
