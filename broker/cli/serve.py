"""`slotmq serve`: load the settings, set up the log and run the server. Failures are printed, defects only logged."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from typing import Any

from broker.amqp.errors import BrokerError
from broker.cli.client_variables import INTERPRETED_VARIABLE
from broker.cli.exit_codes import FAILED, code_of_start
from broker.cli.rabbitmq_variables import ignored_variables
from broker.cli.settings_layers import load, with_cluster_url
from broker.cli.standard_streams import exit_at_once
from broker.compiled import why_interpreted
from broker.event_log import get_logger, redirect
from broker.log_writer import LogWriter
from broker.net.pending_clients import DESCRIPTORS_WANTED
from broker.reload import SettingsSource
from broker.settings import Settings
from broker.signals import Signals
from broker.store.damage import CorruptStore, MissingData, StoreFailed
from broker.telemetry import LineLogger


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit, but at most to DESCRIPTORS_WANTED.

    A shell's default of 1,024 exists for select(2). With it, a thousand clients or vhosts would leave the store without
    a descriptor for its next segment, and a store that cannot write ends the broker.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with suppress(OSError, ValueError):  # macOS may refuse it, because the system has a lower limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


log = get_logger()


def run(arguments: argparse.Namespace) -> int:
    """Run the broker and return its exit code. Raises: SettingsError."""
    signals = Signals()  # before the settings are read, so that no later SIGHUP is missed
    try:
        return serve_until_stopped(arguments, signals)
    finally:
        signals.close()  # otherwise Python restores the default actions at exit, and a signal would kill the process


def serve_until_stopped(arguments: argparse.Namespace, signals: Signals) -> int:
    """Set up the log, run the broker, write the log's last lines and return the exit code. Raises: SettingsError."""
    layer = flags(arguments)

    def load_settings() -> Settings:
        return with_cluster_url(load(arguments.config, layer))

    settings = load_settings()
    writer = LogWriter(sys.stderr)

    def configure_log(settings: Settings) -> None:
        section = settings.log
        redirect(LineLogger(writer, section.level, section.format, section.repeat_interval_ms))

    configure_log(settings)
    ignored = ignored_variables(os.environ)
    if ignored:
        log.warning("variables.ignored", names=ignored, reason="variables of RabbitMQ that have no effect here")
    reason = os.environ.get(INTERPRETED_VARIABLE) or why_interpreted()
    if reason:
        log.info("modules.interpreted", reason=reason)
    raise_file_limit()
    code = serve(settings, SettingsSource(load_settings, configure_log), signals)
    if not writer.close():
        exit_at_once(code)
    return code


def flags(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the given flags as a layer of settings."""
    values = {
        "server": {
            "host": arguments.host,
            "port": arguments.port,
            "data_dir": arguments.data_dir,
            "load_definitions": arguments.load_definitions,
        },
        "mqtt": {"enabled": True if arguments.mqtt else None},
        "cluster": {"url": arguments.cluster, "url_file": arguments.cluster_file, "node": arguments.node},
        "store": {"sync": False if arguments.no_sync else None},
        "log": {"format": arguments.log_format},
    }
    return {section: {k: v for k, v in keys.items() if v is not None} for section, keys in values.items()}


def serve(settings: Settings, source: SettingsSource, signals: Signals) -> int:
    """Run the server and return its exit code."""
    from broker import process  # other commands start sooner without importing the server

    try:
        return process.run(settings, source, signals)
    except (CorruptStore, MissingData) as error:
        _say(f'{error}; nothing was changed (to start without it: store.on_corruption = "quarantine")')
        return FAILED
    except StoreFailed as error:  # nothing is confirmed after this; the next start recovers from the log
        log.error("store.failed", reason=str(error))  # noqa: TRY400 - a traceback does not help an operator
        _say(f"the store failed, stopping: {error}")
        return FAILED
    except BrokerError as error:
        _say(str(error))
        return code_of_start(error)
    except OSError as error:  # an unexpected error of the system: the log has the traceback
        log.exception("server.failed")
        words = [*getattr(error, "__notes__", ["the broker failed"]), error.filename, error.strerror or str(error)]
        _say(": ".join([str(word) for word in words if word]))
        return code_of_start(error)
    except Exception:  # a defect: reported only in the log
        log.exception("server.crashed")
        return FAILED


def _say(problem: str) -> None:
    with suppress(OSError, ValueError):  # standard error may be closed; then the exit code has to suffice
        # one write, because the log's thread may be writing too
        print(f"slotmq: {problem}\n", end="", file=sys.stderr, flush=True)
