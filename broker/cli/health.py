"""`slotmq health`: check that the running broker answers; cheap enough to run every few seconds.

It imports almost nothing, not even argparse, so that its cost is hardly more than the start of the interpreter.
"""

from __future__ import annotations

import _socket  # without socket's imports of enum and selectors, which cost more than the rest of this command
import os
import sys

from broker.cli.broker_folder import SettingsError, broker_folder, shown
from broker.net.control_address import socket_address

TYPE_CHECKING = False  # importing typing would cost more than the check itself
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

TIMEOUT_S: Final = 5.0
USAGE: Final = "usage: slotmq health [--data-dir D] [--config FILE]"
QUESTION: Final = b'{"verb":"health"}\n'
HEALTHY: Final = b'{"ok":true'


def health(argv: Sequence[str]) -> int:
    """Return the exit code: 0 for a healthy broker, 1 for an unhealthy or silent one, 2 for wrong usage or settings."""
    given: dict[str, str] = {}
    words = list(argv)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name in ("-h", "--help"):
            print(USAGE)
            return 0
        if name not in ("--data-dir", "--config") or not (equals or words):
            return _say(f"wrong argument {name} ({USAGE})", 2)
        given[name] = value if equals else words.pop(0)
    try:
        folder = broker_folder(given.get("--data-dir"), given.get("--config"))
    except SettingsError as error:
        return _say(str(error), 2)
    try:
        answer = _ask(folder)
    except OSError as error:
        return _say(f"no broker answers on data folder {shown(folder)}: {error.strerror or error}", 1)
    if not answer.startswith(HEALTHY):
        return _say(f"the broker on data folder {folder} is unhealthy: {answer.decode(errors='replace').strip()}", 1)
    return 0


def _ask(folder: str) -> bytes:
    address, descriptor = socket_address(folder)
    client = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        client.settimeout(TIMEOUT_S)
        client.connect(address)
        client.sendall(QUESTION)
        return client.recv(1 << 16)
    finally:
        client.close()
        if descriptor is not None:
            os.close(descriptor)


def _say(problem: str, code: int) -> int:
    print(f"slotmq: {problem}", file=sys.stderr)
    return code
