"""The variables that set up RabbitMQ's image, each also by a file of that name: `RABBITMQ_DEFAULT_USER`, `_PASS` and
`_VHOST`. `SLOTMQ_DEFAULT_USER` and so on mean the same, and win.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["VARIABLES", "rabbitmq_layer", "variable_of"]

KEYS: Final = {"USER": "default_user", "PASS": "default_pass", "VHOST": "default_vhost"}
PREFIXES: Final = ("RABBITMQ_", "SLOTMQ_")
FILE: Final = "_FILE"
FILE_BYTES_MAX: Final = 1 << 16

VARIABLES: Final = frozenset(
    f"{prefix}DEFAULT_{name}{file}" for prefix in PREFIXES for name in KEYS for file in ("", FILE)
)


def rabbitmq_layer(environ: Mapping[str, str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the layer of settings from these variables, and a line for each that cannot be used.

    An empty variable is ignored, because a compose file may pass on unset ones. The value may be a password: it is
    never repeated. *Blocking.*
    """
    said: dict[str, Any] = {}
    problems: list[str] = []
    for prefix in PREFIXES:
        for name, key in KEYS.items():
            variable = f"{prefix}DEFAULT_{name}"
            value, path = environ.get(variable), environ.get(variable + FILE)
            if value and path:
                problems.append(f"{variable} and {variable}{FILE}: only one of them can be set")
            elif path:
                try:
                    said[key] = read(Path(path))
                except ValueError as error:
                    problems.append(f"{variable}{FILE}: {path}: {error}")
            elif value:
                said[key] = value
    return ({"auth": said} if said else {}), problems


def variable_of(key: str, environ: Mapping[str, str]) -> str:
    """Return the variable that set a key of the layer."""
    name = next((name for name, field in KEYS.items() if key == f"auth.{field}"), "")
    candidates = [f"{prefix}DEFAULT_{name}{file}" for prefix in reversed(PREFIXES) for file in (FILE, "")]
    return next((variable for variable in candidates if name and environ.get(variable)), key)


def read(path: Path) -> str:
    """Return a file's text without the line end behind it. Raises: ValueError with the reason."""
    try:
        with path.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    if not text:
        raise ValueError("empty")
    return text
