"""Wires the broker and runs it until a signal: the only file that knows every part."""

from __future__ import annotations

import asyncio
import secrets
import signal
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from broker import __version__
from broker.amqp.errors import StoreFailed
from broker.core.auth.permissions import Permissions
from broker.core.auth.users import User, Users
from broker.core.flow import Flow, Watermark
from broker.delivery.engine import Engine
from broker.delivery.machine import memory_limit_bytes, resident_bytes
from broker.delivery.timers import Timers
from broker.delivery.turn import Turn
from broker.net.address import bind, close
from broker.net.control import ControlSocket
from broker.net.control_verbs import control_verbs
from broker.net.intake import Intake
from broker.net.listener import Listener
from broker.net.transport import Transport
from broker.settings import Settings
from broker.store.data_folder import DataFolder
from broker.store.files import Files
from broker.store.recovery import RecoveryProgress
from broker.store.store import VhostStore

__all__ = ["Broker", "run"]

DEFAULT_VHOST: Final = "/"
STORE_BACKLOG_MAX_BYTES: Final = 32 << 20  # unwritten log records beyond this pause the publishers
NAME_ALPHABET: Final = string.ascii_letters + string.digits + "-_"
NAME_LETTERS: Final = 22  # 132 bits, as in RabbitMQ's generated names

_log = structlog.get_logger()


def generate_name() -> str:
    """Returns 22 characters that nobody else has."""
    return "".join(secrets.choice(NAME_ALPHABET) for _ in range(NAME_LETTERS))


class Broker:
    """One broker in one event loop.

    Raises: FolderBusy, FolderUnwritable, StoreFailed and OSError from `start`.
    """

    def __init__(self, settings: Settings, files: Files | None = None) -> None:
        self.settings = settings
        self._files = files or Files()
        self._path = Path(settings.server.data_dir).absolute()
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None
        self._folder: DataFolder
        self.turn: Turn
        self.engines: dict[str, Engine] = {}
        self.listener: Listener
        self.flow: Flow[Transport]

    async def start(self) -> None:
        """Recovers what is on disk and begins to listen."""
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        settings = self.settings
        bound = bind(settings.server.host, settings.server.port)
        try:
            self._folder = DataFolder.open(self._files, self._path)
        except BaseException:
            close(bound)
            raise
        try:
            self.turn = Turn(loop, time.time, self._fail)
            self._open_vhost(DEFAULT_VHOST, loop)
            vhosts = {name: engine.vhost for name, engine in self.engines.items()}
            users = Users(
                [User(name, secret.get_secret_value()) for name, secret in settings.auth.users.items()],
                settings.auth.loopback_users,
            )
            self.flow = Flow(self._watermarks())
            self._intake = Intake(self.flow, self._pending_bytes, STORE_BACKLOG_MAX_BYTES)
            self.turn.engines = list(self.engines.values())
            self.turn.after = self._intake.turn
            self.listener = Listener(
                settings, self.turn, self._intake, users=users, permissions=Permissions(users), vhosts=vhosts
            )
            self._control = ControlSocket(self._folder.path, control_verbs(vhosts, self._facts))
            self._timers = Timers(loop, self._fail)
            for interval_s, action in self._periodic():
                self._timers.every(interval_s, action)
            self._measure()
            await self.listener.start(bound)
            await self._control.start()
        except BaseException:
            close(bound)
            for engine in self.engines.values():
                engine.close(clean=engine.recovered_clean)  # nothing happened: the next start finds what this one found
            self._folder.close()
            raise
        self.started_s = time.monotonic() - began
        _log.info(
            "server.started", port=self.listener.port, data_dir=str(self._folder.path), took_s=round(self.started_s, 3)
        )

    async def stop(self) -> None:
        """Finishes what was taken, says good-bye and writes everything down."""
        _log.info("server.stopping", connections=len(self.listener.transports))
        self.listener.refuse_new()
        self.listener.stop_reading()
        try:
            for engine in self.engines.values():
                await engine.committer.drain()
            await asyncio.sleep(0)  # one turn writes the last confirms
            await self.listener.close(self.settings.server.drain_timeout_ms / 1000)
            for engine in self.engines.values():
                await engine.stop()
        finally:  # a broker that failed gives back its port and its folder all the same
            self.listener.abort()
            self._timers.close()
            await self._control.close()
            for engine in self.engines.values():
                engine.close()
            self._folder.close()
        _log.info("server.stopped")

    async def wait_failed(self) -> BaseException:
        """Returns what ended the broker from inside; nothing was confirmed after it."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    @property
    def url(self) -> str:
        """The address for a client, without a user: half a login would be worse than none."""
        host = self.settings.server.host
        return f"amqp://{f'[{host}]' if ':' in host else host}:{self.listener.port}/"

    def ready_line(self) -> str:
        """Says where clients connect, as whom, and where the messages are."""
        user = next(iter(self.settings.auth.users), "nobody")
        return f"SlotMQ {__version__} is ready at {self.url} (user {user}), data in {self._folder.path}"

    def _open_vhost(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        settings = self.settings
        store, recovered = VhostStore.open(
            self._files,
            self._folder.vhost_folder(name),
            segment_bytes=settings.store.segment_bytes,
            sync=settings.store.sync,
            progress=_tell_progress,
            quarantine=settings.store.on_corruption == "quarantine",
            window_messages=settings.slots.window_messages,
            window_bytes=settings.slots.window_bytes,
        )
        engine = Engine(name, store, settings, self.turn, loop, generate=generate_name, fail=self._fail)
        engine.restore(recovered)
        self.engines[name] = engine
        if recovered.records or recovered.messages:
            _log.info(
                "store.recovered",
                vhost=name,
                clean=recovered.clean,
                messages=recovered.messages,
                records=recovered.records,
                cut_bytes=recovered.cut_bytes,
            )

    def _periodic(self) -> list[tuple[float, Callable[[], None]]]:
        actions: list[tuple[float, Callable[[], None]]] = [
            (1.0, self.listener.tick),
            (self.settings.flow.check_interval_ms / 1000, self._measure),
        ]
        for engine in self.engines.values():
            actions += [(0.1, engine.page), (1.0, engine.tick)]
        return actions

    def _watermarks(self) -> list[Watermark]:
        memory, store = self.settings.memory, self.settings.store
        if memory.alarm_bytes:
            limit = Watermark("memory", memory.alarm_bytes, "memory.alarm_bytes")
        else:
            limit = Watermark("memory", int(memory_limit_bytes() * memory.alarm_ratio), "memory.alarm_ratio")
        return [limit, Watermark("disk", store.disk_free_min_bytes, "store.disk_free_min_bytes")]

    def _measure(self) -> None:
        changed = self.flow.measure("memory", resident_bytes())
        changed |= self.flow.measure("disk", self._folder.free_bytes())
        if not changed:
            return
        for alarm in self.flow.alarms.values():
            _log.warning("alarm.raised", **alarm.fields())
        if not self.flow.alarms:
            _log.info("alarm.cleared")
        self._intake.alarms_changed()

    def _pending_bytes(self) -> int:
        return sum(engine.store.log.pending_bytes for engine in self.engines.values())

    def _facts(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "url": self.url,
            "connections": len(self.listener.transports),
            "alarms": [alarm.fields() for alarm in self.flow.alarms.values()],
            "resident_bytes": resident_bytes(),
        }

    def _fail(self, error: BaseException) -> None:
        """Ends the broker: a lost store or a defect in the turn. Nothing is confirmed after it; recovery starts from
        the log.
        """
        if self._failure is None:
            self._failure = error
            self.turn.dead = True
            for engine in self.engines.values():
                engine.committer.abort(error)
            self._failed.set()


def _tell_progress(progress: RecoveryProgress) -> None:
    _log.info(
        "store.recovering",
        percent=progress.done_bytes * 100 // (progress.total_bytes or 1),
        done_bytes=progress.done_bytes,
        total_bytes=progress.total_bytes,
        records=progress.records,
    )


def run(settings: Settings) -> int:
    """Runs the broker until SIGTERM or SIGINT and returns the exit code.

    Raises: what `Broker.start` raises; StoreFailed when the store failed later.
    """
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # not to be had on Windows and PyPy; asyncio's own loop serves too
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    broker = Broker(settings)
    await broker.start()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def asked() -> None:
        """Stops in order; asked again, without waiting for clients."""
        if stop.is_set():
            broker.listener.abort()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    print(broker.ready_line(), flush=True)
    failed = asyncio.ensure_future(broker.wait_failed())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        stopped.cancel()
        return _failed(failed.result())
    stopping = asyncio.ensure_future(broker.stop())
    await asyncio.wait({failed, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        stopping.cancel()
        return _failed(failed.result())
    failed.cancel()
    stopping.result()
    return 0


def _failed(error: BaseException) -> int:
    """Returns the exit code of a broker that ended from inside. Raises: StoreFailed."""
    if isinstance(error, StoreFailed):
        raise error
    _log.error("server.crashed", exc_info=error)
    return 1
