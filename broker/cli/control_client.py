"""Asks the running broker over the control socket in its data folder."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from broker.net.control import socket_address

__all__ = ["Unanswered", "ask"]

ANSWER_MAX_BYTES: Final = 1 << 26
TIMEOUT_S: Final = 10.0


class Unanswered(Exception):
    """The broker could not be asked, or said no; the text is one line for the user."""


def ask(folder: Path, verb: str, **arguments: Any) -> Any:
    """Returns the result of a verb. Raises: Unanswered."""
    try:
        address, descriptor = socket_address(folder)
    except OSError as error:
        raise Unanswered(f"no broker on data folder {folder}: {error.strerror or error}") from None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(TIMEOUT_S)
            client.connect(address)
            client.sendall(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            line = _read_line(client)
    except (FileNotFoundError, ConnectionRefusedError):
        raise Unanswered(f"no broker runs on data folder {folder}") from None
    except TimeoutError:
        raise Unanswered(f"the broker on data folder {folder} did not answer within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise Unanswered(f"the broker on data folder {folder} cannot be asked: {error.strerror or error}") from None
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return _result(line, folder)


def _read_line(client: socket.socket) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while size < ANSWER_MAX_BYTES:
        piece = client.recv(1 << 16)
        pieces.append(piece)
        size += len(piece)
        if not piece or piece.endswith(b"\n"):
            break
    return b"".join(pieces)


def _result(line: bytes, folder: Path) -> Any:
    try:
        answer = json.loads(line)
        if answer["ok"]:
            return answer["result"]
        reason = str(answer["error"])
    except (ValueError, KeyError, TypeError):
        raise Unanswered(f"the broker on data folder {folder} ended the conversation") from None
    raise Unanswered(reason)
