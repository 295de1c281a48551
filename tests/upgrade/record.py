"""Records data folders of this version: `python -m tests.upgrade.record format-3`.

A recording is made once per format of the data folder and never again after the format's release: all later versions
must open it. It consists of a folder after a clean stop, a folder after a kill, their contents as read by a broker of
the same version, and a lake archived from the first folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.broker_process import PROJECT, BrokerProcess
from tests.deadline import wait_until
from tests.upgrade.contents import SMALL, build, go_on, look
from tests.upgrade.recordings import CLEAN, HERE, KILLED, pack


def record(name: str) -> None:
    """Write the recordings of a format."""
    target = HERE / name
    target.mkdir()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        broker = BrokerProcess(folder, environment=SMALL)
        try:
            build(broker.start())
            assert broker.terminate() == 0
            _keep(folder, target, CLEAN)
            _archive(folder, target)
            go_on(broker.start())
            broker.kill()
            _keep(folder, target, KILLED)
        finally:
            broker.kill()


def _keep(folder: Path, target: Path, name: str) -> None:
    pack(folder, target / f"{name}.tar.xz")
    copy = folder.with_name(f"copy of {name}")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.sock"))
    broker = BrokerProcess(copy, environment=SMALL).start()
    try:
        found = look(broker)
    finally:
        broker.kill()
    text = json.dumps(found, sort_keys=True, ensure_ascii=False)
    (target / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _archive(folder: Path, target: Path) -> None:
    """Archive the messages of a copy's tap after its cursor."""
    copy, lake = folder.with_name("archived"), folder.with_name("lake")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.sock"))
    broker = BrokerProcess(copy, environment=SMALL).start()
    try:
        wait_until(lambda: len(list(copy.glob("slots/*.slot"))) == 1, "the removal of the slot file before the cursor")
        command = [sys.executable, "-m", "broker", "pipeline", "archive", "--path", str(copy), "--lake", str(lake)]
        subprocess.run(command, cwd=PROJECT, check=True)
    finally:
        broker.kill()
    pack(lake, target / "lake.tar.xz")


if __name__ == "__main__":
    record(sys.argv[1])
