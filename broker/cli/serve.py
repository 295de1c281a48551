"""`slotmq serve`: settings and logging first, then the server; what keeps it from starting is one line."""

from __future__ import annotations

import argparse
import socket
import sys
from typing import Any

from broker import telemetry
from broker.amqp.errors import BrokerError, StoreFailed
from broker.cli.file_limit import raise_file_limit
from broker.cli.settings_layers import load
from broker.cli.standard_streams import leave
from broker.event_log import get_logger
from broker.log_writer import LogWriter
from broker.settings import Settings
from broker.store.damage import CorruptStore

__all__ = ["run"]

log = get_logger()


def run(arguments: argparse.Namespace) -> int:
    """Runs the broker and returns its exit code. Raises: SettingsError."""
    settings = load(arguments.config, flags(arguments))
    writer = LogWriter(sys.stderr)
    telemetry.configure(settings.log.level, settings.log.format, settings.log.repeat_interval_ms, writer)
    raise_file_limit()
    code = serve(settings)
    if not writer.close():
        leave(code)
    return code


def flags(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the flags that were given, as a layer of settings."""
    given = {
        "server": {
            "host": arguments.host,
            "port": arguments.port,
            "data_dir": arguments.data_dir,
            "load_definitions": arguments.load_definitions,
        },
        "store": {"sync": False if arguments.no_sync else None},
        "log": {"format": arguments.log_format},
    }
    return {section: {k: v for k, v in keys.items() if v is not None} for section, keys in given.items()}


def serve(settings: Settings) -> int:
    """Runs the server; 2 when it cannot start here, 1 when it failed."""
    from broker import process  # the other commands need no server, and start faster without

    try:
        return process.run(settings)
    except CorruptStore as error:
        return _say(f'{error}; nothing was changed (to start without it: store.on_corruption = "quarantine")', 1)
    except StoreFailed as error:  # nothing is confirmed after this; the next start recovers from the log
        log.error("store.failed", reason=str(error))  # noqa: TRY400 - where in the code is no help to an operator
        return _say(f"the store failed, stopping: {error}", 1)
    except BrokerError as error:
        return _say(str(error), 2)
    except socket.gaierror as error:
        return _say(f"server.host: {settings.server.host} is no address: {error.strerror}", 2)
    except OSError as error:
        return _say(error.strerror or str(error), 2)
    except Exception:  # a defect: told once, in the log, where operators look
        log.exception("server.crashed")
        return 1


def _say(problem: str, code: int) -> int:
    try:
        print(f"slotmq: {problem}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # nobody to tell: the exit code says it
        pass
    return code
