"""Settings from the environment variables of RabbitMQ's container image and of RabbitMQ nodes.

The image's variables set the first user: `RABBITMQ_DEFAULT_USER`, `_PASS` and `_VHOST`. With the suffix `_FILE` a
variable names a file that contains the value. `SLOTMQ_DEFAULT_USER` etc. have the same meaning, and take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

KEYS: Final = {"USER": "auth.default_user", "PASS": "auth.default_pass", "VHOST": "auth.default_vhost"}
PREFIXES: Final = ("RABBITMQ_", "SLOTMQ_")
FILE: Final = "_FILE"
FILE_BYTES_MAX: Final = 1 << 16

VARIABLES: Final = frozenset(
    f"{prefix}DEFAULT_{name}{file}" for prefix in PREFIXES for name in KEYS for file in ("", FILE)
)

WATERMARK: Final = "RABBITMQ_VM_MEMORY_HIGH_WATERMARK"
NODE_KEYS: Final = {"RABBITMQ_NODE_PORT": "server.port", "RABBITMQ_NODE_IP_ADDRESS": "server.host"}
# Variables of RabbitMQ, its container images and Erlang that have no effect on SlotMQ.
IGNORED: Final = frozenset(
    "ADVANCED_CONFIG_FILE BASE CONFIG_FILE CONFIG_FILES CONF_ENV_FILE CTL_DIST_PORT_MAX CTL_DIST_PORT_MIN CTL_ERL_ARGS "
    "DEFAULT_USER_TAGS DIST_PORT ENABLED_PLUGINS ENABLED_PLUGINS_FILE ERLANG_COOKIE FEATURE_FLAGS "
    "FEATURE_FLAGS_FILE FORCED_FEATURE_FLAGS_ON_INIT GENERATED_CONFIG_DIR HIPE_COMPILE HOME IO_THREAD_POOL_SIZE "
    "KEEP_PID_FILE_ON_EXIT LOG LOGS LOG_BASE MANAGEMENT_ALLOW_WEB_ACCESS MANAGEMENT_SSL_CACERTFILE "
    "MANAGEMENT_SSL_CERTFILE MANAGEMENT_SSL_DEPTH MANAGEMENT_SSL_FAIL_IF_NO_PEER_CERT MANAGEMENT_SSL_KEYFILE "
    "MANAGEMENT_SSL_VERIFY MAX_NUMBER_OF_ATOMS MAX_NUMBER_OF_PROCESSES MNESIA_BASE MNESIA_DIR NODENAME PID_FILE "
    "PLUGINS_DIR PLUGINS_EXPAND_DIR QUORUM_DIR SASL_LOGS SCHEDULER_BIND_TYPE SCHEMA_DIR SERVER_ADDITIONAL_ERL_ARGS "
    "SERVER_CODE_PATH SERVER_ERL_ARGS SERVER_START_ARGS SERVICENAME SSL_CACERTFILE SSL_CERTFILE SSL_DEPTH "
    "SSL_FAIL_IF_NO_PEER_CERT SSL_KEYFILE SSL_VERIFY STREAM_DIR UPGRADE_LOG USE_LONGNAME".split()
)
# RabbitMQ's sizes: kB, MB and GB are decimal units; k, M, G and KiB, MiB, GiB are binary ones.
SIZE: Final = re.compile(r"(\d+)(?:([kKmMgG])(i[bB]|[bB])?)?")
POWERS: Final = {"K": 1, "M": 2, "G": 3}


def settings_from_variables(environ: Mapping[str, str]) -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """Return the variable and the value that set each key, and a line for each variable that cannot be used.

    An empty variable is ignored, because a compose file may pass unset variables as empty ones. No line contains a
    setting's value, which may be a password. *Blocking.*
    """
    found: dict[str, tuple[str, Any]] = {
        key: (name, environ[name]) for name, key in NODE_KEYS.items() if environ.get(name)
    }
    watermark = environ.get(WATERMARK)
    if watermark and ("." in watermark or watermark == "1"):  # a fraction of the memory, not a size
        found["memory.alarm_ratio"] = WATERMARK, watermark
    elif watermark:
        found["memory.alarm_bytes"] = WATERMARK, _size(watermark)
    problems: list[str] = []
    for prefix in PREFIXES:
        for name, key in KEYS.items():
            variable = f"{prefix}DEFAULT_{name}"
            value, path = environ.get(variable), environ.get(variable + FILE)
            if value and path:
                problems.append(f"{variable} and {variable}{FILE}: only one of them can be set")
            elif path:
                try:
                    found[key] = variable + FILE, read(Path(path))
                except ValueError as error:
                    problems.append(f"{variable}{FILE}: {path}: {error}")
            elif value:
                found[key] = variable, value
    return found, problems


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the RabbitMQ variables that are set but have no effect on SlotMQ."""
    return sorted(f"RABBITMQ_{name}" for name in IGNORED if environ.get(f"RABBITMQ_{name}"))


def _size(value: str) -> str | int:
    """Convert a size in RabbitMQ's notation to bytes; return any other text unchanged, for the settings to check."""
    found = SIZE.fullmatch(value)
    if found is None:
        return value
    number, unit, kind = found.groups()
    if unit is None:
        return int(number)
    base = 1000 if kind in ("b", "B") else 1024
    return int(number) * int(base ** POWERS[unit.upper()])


def read(path: Path) -> str:
    """Return the text of a file without trailing line breaks. Raises: ValueError with the reason."""
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
