"""A broker in its own process, as in production, for tests that kill clients, block their event loop, or measure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

READY: Final = " is ready at "
STOP_TIMEOUT_S: Final = 20
WITHOUT_HTTP: Final = {"SLOTMQ_HTTP__ENABLED": "false", "SLOTMQ_METRICS__ENABLED": "false"}
PREFIXES: Final = ("SLOTMQ_", "RABBITMQ_")  # of the environment variables that a broker reads


@contextmanager
def broker_process(folder: Path) -> Iterator[str]:
    """Yield the URL of a new broker with its data in `folder`; its settings do not depend on the environment.

    Raises: RuntimeError with its output if the broker does not start; TimeoutExpired if it does not stop in time.
    """
    # -P: a folder named broker beside the tests must not hide the package.
    command = [sys.executable, "-P", "-m", "broker", "serve", "--port", "0", "--data-dir", str(folder)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(PREFIXES)} | WITHOUT_HTTP
    # The log is written to a file, because a pipe without a reader would fill up.
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as errors, subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if READY not in line:
                raise RuntimeError(f"the broker did not start: {line}{log.read_text(errors='replace')}")
            yield line.split(READY)[1].split()[0].replace("amqp://", "amqp://guest:guest@") + "%2F"
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
