"""The layers of settings, of which a later one overrides an earlier one.

A TOML file, RabbitMQ's variables, `SLOTMQ_SECTION__KEY` in the environment, flags.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import SecretStr, ValidationError

from broker.cli.client_variables import CLIENT_VARIABLES
from broker.cli.rabbitmq_variables import VARIABLES, rabbitmq_layer, read, variable_of
from broker.settings import PREFIX, Settings, sections
from broker.settings.cluster import Cluster
from broker.settings.problem import nearest, problem_lines

DELIMITER: Final = "__"
MISSING_DRIVER: Final = "the cluster needs asyncpg, which the extra has: pip install '.[cluster]' in a clone of SlotMQ"
ENTRIES: Final = (dict[str, SecretStr],)  # tables with free names: one variable per entry, or JSON
FLAGS: Final = {"cluster.url": "--cluster", "cluster.url_file": "--cluster-file"}  # others are named like their key
FILE_BYTES_MAX: Final = 1 << 20  # a settings file is read whole; nobody writes a megabyte by hand
SERVICE_LINK: Final = re.compile(r"SLOTMQ_(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_(TCP|UDP)\w*)")


class SettingsError(ValueError):
    """Settings that cannot be used; `problems` has one line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


def load(
    file: Path | None = None, flags: Mapping[str, Mapping[str, Any]] | None = None, *, environment: bool = True
) -> Settings:
    """Return the settings of file, environment and flags; each overrides those before.

    Raises: SettingsError with one line for each problem: the layer, the key, the range or the nearest known key.
    """
    from_file = read_file(file) if file else {}
    from_rabbitmq: Mapping[str, Any] = {}
    if environment:
        check_environment(os.environ)
        from_rabbitmq, problems = rabbitmq_layer(os.environ)
        if problems:
            raise SettingsError(problems)
    layers: list[tuple[Callable[[str], str], Mapping[str, Any]]] = [
        (lambda key: f"{file}: {key}", from_file),
        (lambda key: variable_of(key, os.environ), from_rabbitmq),
        (lambda key: _variable(key) if "." in key else key, read_environment(os.environ) if environment else {}),
        (_flag, flags or {}),
    ]
    merged: dict[str, Any] = {}
    for _name, layer in layers:
        _lay_over(merged, layer)
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise SettingsError(problem_lines(error.errors(), layers)) from None


def with_cluster_url(settings: Settings) -> Settings:
    """Return settings whose `cluster.url` is known, if the broker is a node of a cluster. *Blocking.*

    Raises: SettingsError when the driver is not installed, or the file of the URL cannot be used.
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


def read_file(file: Path) -> dict[str, Any]:
    """Read a TOML file. Raises: SettingsError when it cannot be read, is not TOML, or exceeds FILE_BYTES_MAX."""
    import tomllib  # a broker without a settings file starts sooner without it

    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError([f"{file}: cannot be read: {error.strerror}"]) from None
    if len(content) > FILE_BYTES_MAX:
        raise SettingsError([f"{file}: larger than {FILE_BYTES_MAX} bytes"])
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"{file}: not valid TOML: {error}"]) from None


def check_environment(environ: Mapping[str, str]) -> None:
    """Refuse SLOTMQ_ variables that are not settings, which `read_environment` ignores.

    Raises: SettingsError that names each and the nearest known one. A value may be a password: no text repeats it.
    """
    known = {
        _variable(f"{section}.{key}"): field for section, _model, fields in sections() for key, field in fields.items()
    }
    entries = tuple(name + DELIMITER for name, field in known.items() if field.annotation in ENTRIES)  # ...USERS__alice
    problems = []
    for name, value in sorted(environ.items()):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper.startswith(entries) or _is_service_link(upper, value):
            continue
        if name in VARIABLES or name in CLIENT_VARIABLES:
            continue
        if upper not in known:
            problems.append(f"{name}: unknown setting{nearest(upper, list(known), DELIMITER)}")
        elif _is_entries_or_list(known[upper].annotation) and not _is_json(value):
            problems.append(f"{name}: not valid JSON")
    if problems:
        raise SettingsError(problems)


def read_environment(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the settings of the environment that `check_environment` has passed, by section and key.

    Tables and lists are JSON. A variable may set one entry of a table, and overrides the JSON of the table.
    """
    fields = {section: fields for section, _model, fields in sections()}
    said: dict[str, dict[str, Any]] = {}
    by_name = [(name.lower(), value) for name, value in environ.items()]
    for name, value in sorted(by_name, key=itemgetter(0)):  # a table before its entries
        section, *path = name.removeprefix(PREFIX.lower()).split(DELIMITER)
        if not name.startswith(PREFIX.lower()) or not path or path[0] not in fields.get(section, ()):
            continue
        is_json = len(path) == 1 and _is_entries_or_list(fields[section][path[0]].annotation)
        inner: Any = said.setdefault(section, {})
        for table in path[:-1]:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):  # not a table: the model refuses it
                break
        else:
            inner[path[-1]] = json.loads(value) if is_json else value
    return said


def _variable(key: str) -> str:
    return PREFIX + key.upper().replace(".", DELIMITER)


def _flag(key: str) -> str:
    return FLAGS.get(key) or ("--" + key.rpartition(".")[2].replace("_", "-") if "." in key else key)


def _is_service_link(name: str, value: str) -> bool:
    """Return whether Kubernetes sets this variable in a pod because there is a service called slotmq."""
    if name.endswith("_PORT"):
        return value.startswith(("tcp://", "udp://"))
    return SERVICE_LINK.fullmatch(name) is not None


def _is_entries_or_list(annotation: Any) -> bool:
    return annotation in ENTRIES or get_origin(annotation) is tuple


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(key), dict):
            _lay_over(below[key], value)
        else:
            below[key] = dict(value) if isinstance(value, Mapping) else value
