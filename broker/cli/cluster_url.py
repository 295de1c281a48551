"""The preconditions of a cluster node: the database driver, and the URL read from its file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pydantic import SecretStr, ValidationError

from broker.cli.rabbitmq_variables import read
from broker.cli.settings_layers import SettingsError
from broker.settings import Settings
from broker.settings.cluster import Cluster
from broker.settings.problem import problem_lines

__all__ = ["with_cluster_url"]

MISSING_DRIVER: Final = "the cluster needs asyncpg, which the extra has: pip install '.[cluster]' in a clone of SlotMQ"


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
