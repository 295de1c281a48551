"""Load the settings from their layers. A later layer overrides the earlier ones.

The layers are a TOML file, RabbitMQ's variables, `SLOTMQ_SECTION__KEY` in the environment, and flags.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import SecretStr, ValidationError

from broker.cli.broker_folder import SettingsError, read_toml
from broker.cli.client_variables import CLIENT_VARIABLES
from broker.cli.rabbitmq_variables import VARIABLES, read, settings_from_variables
from broker.settings import PREFIX, Settings, sections
from broker.settings.cluster import Cluster
from broker.settings.problem import nearest, problem_lines

DELIMITER: Final = "__"
MISSING_DRIVER: Final = "the cluster needs asyncpg, which the extra has: pip install '.[cluster]' in a clone of SlotMQ"
ENTRIES: Final = (dict[str, SecretStr],)  # tables with any keys; a variable sets one entry, or the whole table as JSON
FLAGS: Final = {"cluster.url": "--cluster", "cluster.url_file": "--cluster-file"}  # flags not named after their keys
SERVICE_LINK: Final = re.compile(r"SLOTMQ_(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_(TCP|UDP)\w*)")


def load(
    file: Path | None = None, flags: Mapping[str, Mapping[str, Any]] | None = None, *, environment: bool = True
) -> Settings:
    """Return the settings of the file, the environment and the flags. Raises: SettingsError."""
    from_file = read_toml(file) if file else {}
    from_rabbitmq: dict[str, dict[str, Any]] = {}
    variables: dict[str, str] = {}
    from_environment = read_environment(os.environ) if environment else {}
    if environment:
        found, problems = settings_from_variables(os.environ)
        if problems:
            raise SettingsError(problems)
        for key, (variable, value) in found.items():
            variables[key] = variable
            section, _, name = key.partition(".")
            from_rabbitmq.setdefault(section, {})[name] = value
    layers: list[tuple[Callable[[str], str], Mapping[str, Any]]] = [
        (lambda key: f"{file}: {key}", from_file),
        (lambda key: variables.get(key, key), from_rabbitmq),
        (lambda key: _variable(key) if "." in key else key, from_environment),
        (_flag, flags or {}),
    ]
    merged: dict[str, Any] = {}
    for _name, layer in layers:
        _merge(merged, layer)
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise SettingsError(problem_lines(error.errors(), layers)) from None


def with_cluster_url(settings: Settings) -> Settings:
    """Return the settings; for a cluster, read `cluster.url` from `cluster.url_file` if that is set. *Blocking.*

    Raises: SettingsError if the database driver is not installed, or the file of the URL cannot be used.
    """
    cluster = settings.cluster
    if not cluster.is_on:
        return settings
    if find_spec("asyncpg") is None:
        raise SettingsError([MISSING_DRIVER])
    if not cluster.url_file:
        return settings
    try:
        url = read(Path(cluster.url_file)).strip()
    except ValueError as error:
        raise SettingsError([f"cluster.url_file: {cluster.url_file}: {error}"]) from None
    try:
        Cluster(url=SecretStr(url), node=cluster.node)
    except ValidationError as error:
        raise SettingsError([f"{cluster.url_file}: {line}" for line in problem_lines(error.errors())]) from None
    return settings.model_copy(update={"cluster": cluster.model_copy(update={"url": SecretStr(url)})})


def read_environment(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the settings of the environment, by section and key.

    Tables and lists are JSON. A variable may also set one entry of a table; it overrides the table's JSON.
    Raises: SettingsError with a line for each unknown SLOTMQ_ variable and each variable with invalid JSON. No line
        contains a value, which may be a password.
    """
    known = {
        _variable(f"{section}.{key}"): field for section, _model, fields in sections() for key, field in fields.items()
    }
    settings: dict[str, dict[str, Any]] = {}
    problems = []
    for name in sorted(environ, key=str.upper):  # so that a table is read before its entries
        variable, value = name.upper(), environ[name]
        if not variable.startswith(PREFIX):
            continue
        section, *path = name.lower().removeprefix(PREFIX.lower()).split(DELIMITER)
        field = known.get(DELIMITER.join(variable.split(DELIMITER)[:2]))
        if field is None or (len(path) > 1 and field.annotation not in ENTRIES):
            if not (_is_service_link(variable, value) or name in VARIABLES or name in CLIENT_VARIABLES):
                problems.append(f"{name}: unknown setting{nearest(variable, list(known), DELIMITER)}")
            continue
        inner: Any = settings.setdefault(section, {})
        for table in path[:-1]:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):  # not a table: the model refuses it
                break
        else:
            is_json = len(path) == 1 and (field.annotation in ENTRIES or get_origin(field.annotation) is tuple)
            try:
                inner[path[-1]] = json.loads(value) if is_json else value
            except ValueError:
                problems.append(f"{name}: not valid JSON")
    if problems:
        raise SettingsError(problems)
    return settings


def _variable(key: str) -> str:
    return PREFIX + key.upper().replace(".", DELIMITER)


def _flag(key: str) -> str:
    return FLAGS.get(key) or ("--" + key.rpartition(".")[2].replace("_", "-") if "." in key else key)


def _is_service_link(name: str, value: str) -> bool:
    """Return whether Kubernetes sets this variable in pods, for a service named slotmq or slotmq-NAME."""
    if name.endswith("_PORT"):
        return value.startswith(("tcp://", "udp://"))
    return SERVICE_LINK.fullmatch(name) is not None


def _merge(merged: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), dict):
            _merge(merged[key], value)
        else:
            merged[key] = dict(value) if isinstance(value, Mapping) else value
