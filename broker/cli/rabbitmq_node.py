"""The environment variables of a RabbitMQ node: those that apply here, and those that do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ignored_variables", "node_layer", "node_variable_of"]

PREFIX: Final = "RABBITMQ_"
WATERMARK: Final = "RABBITMQ_VM_MEMORY_HIGH_WATERMARK"
SAME: Final = {"RABBITMQ_NODE_PORT": "server.port", "RABBITMQ_NODE_IP_ADDRESS": "server.host"}
# Erlang, RabbitMQ's own files and logs, its plugins, and variables that only images before 3.9 read.
WITHOUT_MEANING: Final = frozenset(
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
# RabbitMQ's sizes: kB, MB and GB are decimal, k, M, G and KiB, MiB, GiB are not.
SIZE: Final = re.compile(r"(\d+)(?:([kKmMgG])(i[bB]|[bB])?)?")
POWERS: Final = {"K": 1, "M": 2, "G": 3}


def node_layer(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the layer of settings from the variables of a node; an empty variable is ignored."""
    layer: dict[str, dict[str, Any]] = {}
    for variable, key in _meant(environ).items():
        section, _, name = key.partition(".")
        value = environ[variable]
        layer.setdefault(section, {})[name] = _size(value) if key == "memory.alarm_bytes" else value
    return layer


def node_variable_of(key: str, environ: Mapping[str, str]) -> str:
    """Return the variable that set a key of the layer."""
    return next((variable for variable, meant in _meant(environ).items() if meant == key), key)


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of a node that are set and have no effect here."""
    return sorted(PREFIX + name for name in WITHOUT_MEANING if environ.get(PREFIX + name))


def _meant(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set, with the key that each stands for."""
    found = {variable: key for variable, key in SAME.items() if environ.get(variable)}
    watermark = environ.get(WATERMARK)
    if watermark:  # a fraction of the memory, or a size
        found[WATERMARK] = "memory.alarm_ratio" if "." in watermark or watermark == "1" else "memory.alarm_bytes"
    return found


def _size(value: str) -> str | int:
    """Return RabbitMQ's size in bytes; a malformed one stays text, which the settings refuse."""
    found = SIZE.fullmatch(value)
    if found is None:
        return value
    number, unit, kind = found.groups()
    if unit is None:
        return int(number)
    step = 1000 if kind in ("b", "B") else 1024
    return int(number) * int(step ** POWERS[unit.upper()])
