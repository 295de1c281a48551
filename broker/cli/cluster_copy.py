"""`slotmq cluster backup` and `restore`: the schema of a cluster in PostgreSQL, to a file and back."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, BinaryIO

from broker.cli.broker_folder import BadFile
from broker.cli.control_client import Unanswered
from broker.cli.parser import BadUsage
from broker.cli.progress_line import ProgressLine, share_of
from broker.cli.settings_layers import SettingsError, load, with_cluster_url
from broker.cli.table import cell, counted
from broker.settings import Settings

NODE = "backup"  # what PostgreSQL shows as the name of the connection
NO_DATABASE = "no cluster is named: give --cluster-file FILE, --cluster URL or --config FILE"


def backup(arguments: argparse.Namespace) -> int:
    """Write a backup and return the exit code. A file that was not finished is removed. Raises: SettingsError."""
    settings, file = _settings(arguments), arguments.file
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise BadFile(f"{file}: {error.strerror}") from None
    finished = False
    try:
        with os.fdopen(descriptor, "wb") as stream, ProgressLine(quiet=arguments.quiet) as line:
            from broker.cluster.backup import back_up

            made = _run(settings, back_up, stream, lambda done, total: line.show(f"{share_of(done, total)} bytes"))
            stream.flush()
            os.fsync(stream.fileno())
        finished = True
    except OSError as error:
        raise Unanswered(f"{file}: {error.strerror or error}") from None
    finally:
        if not finished:
            file.unlink(missing_ok=True)
    print(f"{cell(str(file))}: {counted(made['rows'], 'rows')}, {counted(made['bytes'], 'bytes')}")
    return 0


def restore(arguments: argparse.Namespace) -> int:
    """Restore a backup and return the exit code. Raises: SettingsError."""
    settings, file = _settings(arguments), arguments.file
    try:
        stream: BinaryIO = file.open("rb")
    except OSError as error:
        raise BadFile(f"{file}: {error.strerror}") from None
    with stream, ProgressLine(quiet=arguments.quiet) as line:
        from broker.cluster.restore import restore as restore_schema

        total = os.fstat(stream.fileno()).st_size
        made = _run(settings, restore_schema, stream, lambda done: line.show(f"{share_of(done, total)} bytes"))
    print(f"{counted(made['rows'], 'rows')} restored: start the nodes")
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    """Return settings that name a database. Raises: SettingsError; BadUsage."""
    given = {"url": arguments.cluster, "url_file": arguments.cluster_file}
    layer: dict[str, Any] = {"cluster": {key: value for key, value in given.items() if value is not None}}
    try:
        settings = load(arguments.config, {"cluster": {**layer["cluster"], "node": NODE}})
    except SettingsError:
        if not load(arguments.config, layer).cluster.is_on:  # otherwise it says what is wrong
            raise BadUsage(NO_DATABASE) from None
        raise
    return with_cluster_url(settings)


def _run(
    settings: Settings, work: Callable[..., Coroutine[Any, Any, dict[str, int]]], *arguments: Any
) -> dict[str, int]:
    """Copy and return the counts. Raises: Unanswered, BadUsage with one line."""
    from broker.cluster.backup_file import BackupRefused
    from broker.cluster.errors import DatabaseRefused, Unreachable
    from broker.cluster.server_address import ServerAddress

    cluster = settings.cluster
    target = ServerAddress(cluster.url.get_secret_value(), cluster.node, cluster.schema_name)
    try:
        return asyncio.run(work(target, *arguments))
    except DatabaseRefused as error:
        raise BadUsage(str(error)) from None
    except (BackupRefused, Unreachable) as error:
        raise Unanswered(str(error)) from None
