"""The broker: its parts, started in order, stopped in reverse, and aborted after a fatal error."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from broker import __version__
from broker.administration.administration import Administration
from broker.compiled import build_kind
from broker.delivery.clock import SteadyClock
from broker.delivery.engine import Engine
from broker.delivery.timers import Timers
from broker.delivery.turn import Turn
from broker.event_log import get_logger
from broker.net.listener import STEPS, Listener
from broker.net.pending_clients import descriptors_max
from broker.parts.clients import Clients
from broker.parts.data import Data
from broker.parts.definitions import Definitions
from broker.parts.entrance import Entrance
from broker.parts.http import Http
from broker.parts.mqtt import Mqtt
from broker.parts.overlay import Overlay
from broker.parts.part import Part, Shared, named
from broker.parts.ports import CertificateWatch, Ports
from broker.parts.zmq import Zmq
from broker.process_memory import open_descriptors, resident_bytes
from broker.reload import Reload, SettingsSource
from broker.settings import Settings
from broker.store.files import Files
from broker.taps.taps import Taps
from broker.vhosts.vhosts import Vhosts

_log = get_logger()

OVERLAY_TICK_S: Final = 0.02


class BrokerServer:
    """One broker in one event loop. Raises, from `start`: what its parts raise, such as FolderBusy or StoreFailed."""

    def __init__(
        self,
        settings: Settings,
        files: Files | None = None,
        clock: Callable[[], float] | None = None,
        source: SettingsSource | None = None,
    ) -> None:
        """`clock` returns seconds since 1970 and never goes back. `reload` reads the settings from `source`."""
        path = Path(settings.server.data_dir).absolute()
        self.shared = shared = Shared(settings, files or Files(), path, clock or SteadyClock(), self._fail)
        self._on_stop: Callable[[], None] | None = None
        self._step: Callable[[], None] = lambda: None
        self._reload = Reload(source, self._apply_settings)
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None
        self._timers: Timers
        self._ports = ports = Ports(shared)
        self.manage = http = Http(shared, ports)
        self.data = data = Data(shared, ports)
        self.clients = clients = Clients(shared, ports, http, data)
        self._definitions = definitions = Definitions(shared, data, clients)
        self.overlay = overlay = Overlay(shared, data)
        self.zmq = zmq = Zmq(shared, data, clients, overlay)
        self.mqtt = mqtt = Mqtt(shared, ports, data, clients)
        self.entrance = entrance = Entrance(
            shared,
            ports,
            http,
            data,
            clients,
            definitions,
            overlay,
            zmq=zmq.facts,
            facts=self._facts,
            unready=self._unready,
            reload=self.reload,
            ask_to_stop=self._ask_to_stop,
        )
        self.parts: Final[tuple[Part, ...]] = (ports, http, data, clients, definitions, overlay, entrance, zmq, mqtt)
        self._opened = AsyncExitStack()  # closes every opened part, even if the `close` of another part raises

    async def start(self) -> None:
        """Recover the data folder and start listening."""
        await self.recover()
        await self.serve()

    async def recover(self) -> None:
        """Bind the ports, lock the folder and recover it; no client is answered yet, except for HTTP probes."""
        self._began = time.monotonic()
        try:
            for part in self.parts:
                with named(part):
                    await part.open()
                self._opened.push_async_callback(part.close)
        except BaseException:
            await self._opened.aclose()
            raise
        self._certificates = CertificateWatch(self._ports.tls, [self.listener.renew_tls, self.manage.renew_tls])
        self._timers = Timers(asyncio.get_running_loop(), self._fail)
        self._start_timers(self._timers)

    async def serve(self) -> None:
        """Start answering clients and commands, after `recover`."""
        try:
            for part in self.parts:
                with named(part):
                    await part.start()
        except BaseException:
            self._timers.close()
            await self._opened.aclose()
            raise
        self.shared.serve()
        self.started_s = time.monotonic() - self._began
        _log.info(
            "server.started",
            port=self.listener.port,
            tls_port=self.listener.tls_port or None,
            **self.manage.ports(),
            mqtt_port=self.mqtt.port or None,
            mqtt_tls_port=self.mqtt.tls_port or None,
            data_dir=str(self.shared.path),
            took_s=round(self.started_s, 3),
        )

    async def stop(self) -> None:
        """Finish accepted work, then close the connections and the data folder."""
        _log.info("server.stopping", connections=len(self.listener.transports))
        try:
            for part in reversed(self.parts):
                await part.stop(self.settings.server.drain_timeout_ms / 1000)
        finally:  # release the ports and the folder even if the stop failed
            self._timers.close()
            await self._opened.aclose()
        _log.info("server.stopped")

    def stop_with(self, stop: Callable[[], None]) -> None:
        """Set the function that stops the broker's process, for the control socket."""
        self._on_stop = stop

    def step_with(self, step: Callable[[], None]) -> None:
        """Set a function that is called ten times a second."""
        self._step = step

    def _ask_to_stop(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        """Ask the process to stop the broker, and report the progress. Raises: ValueError in an embedded broker."""
        if self._on_stop is None:
            raise ValueError("this broker runs inside another program, which has to stop it")
        self.shared.stopping.listen(tell)
        self._on_stop()

    def drop_clients(self) -> None:
        """Abort the connections of all clients."""
        self.clients.drop()

    def free_computed(self) -> Iterator[None]:
        """Free, in steps, data that can be recomputed: the answers of permission checks, and the engines' caches."""
        self.clients.permissions.forget_answers()
        for engine in list(self.engines.values()):
            yield from engine.free_computed()

    def run_due(self) -> None:
        """Run everything that is due by now, without waiting for a turn of the loop."""
        self.turn.read_clock()
        for engine in self.engines.values():
            engine.run_due()
        self.taps.tick()
        self.listener.close_overdue()
        self.turn.schedule()

    @property
    def settings(self) -> Settings:
        return self.shared.settings

    @property
    def turn(self) -> Turn:
        return self.shared.turn

    @property
    def vhosts(self) -> Vhosts:
        return self.data.vhosts

    @property
    def engines(self) -> dict[str, Engine]:
        return self.vhosts.engines

    @property
    def taps(self) -> Taps:
        return self.data.taps

    @property
    def listener(self) -> Listener:
        """The AMQP listener, with all connections."""
        return self.clients.listener

    @property
    def administration(self) -> Administration:
        return self._definitions.administration

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the broker, if one did."""
        return self._failure

    @property
    def at_rest(self) -> bool:
        """Whether no work is pending in the broker; clients may send more."""
        busy = self.turn.scheduled or self.taps.busy or self.overlay.busy
        return not busy and all(engine.at_rest for engine in self.engines.values())

    async def wait_failed(self) -> BaseException:
        """Wait until the broker fails, and return the error."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    @property
    def url(self) -> str:
        """The URL for clients. It names no user, because the password would be missing."""
        host, listener = self.settings.server.host, self.listener
        scheme, port = ("amqp", listener.port) if listener.port else ("amqps", listener.tls_port)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"

    @property
    def incarnation(self) -> str:
        """The random number of this start, 32 hex digits, which is stored in the data folder."""
        return self.data.folder.incarnation

    async def reload(self) -> dict[str, Any]:
        """Reload settings and certificates, and apply the changes that do not need a restart. Raises: NotReloaded."""
        return await self._reload.run(lambda: self.settings)

    async def _apply_settings(self, settings: Settings) -> None:
        """Apply settings that do not need a restart. Raises: TlsUnusable; then nothing was changed."""
        await self._ports.apply_settings(settings)
        self.shared.apply_settings(settings)
        for part in self.parts[1:]:
            await part.apply_settings(settings)
        await self._certificates.renew()

    def _run_step(self) -> None:
        self._step()

    def _start_timers(self, timers: Timers) -> None:
        """Start the periodic calls. They are few, because each one wakes an idle broker."""
        timers.every(lambda: 1 / STEPS, self.listener.step, self.vhosts.page, self.taps.tick, self._run_step)
        timers.every(lambda: self.settings.flow.check_interval_ms / 1000, self.clients.alarm_watch.measure)
        timers.every(lambda: 1.0, self.vhosts.tick, self.data.watch.tick, self.zmq.tick)
        timers.every(lambda: self.settings.http.sample_interval_ms / 1000, self.manage.tick)
        timers.every(lambda: self.settings.tls.reload_interval_ms / 1000, self._certificates.reload_if_changed)
        if self.overlay.is_on:
            timers.every(lambda: OVERLAY_TICK_S, self.overlay.tick)

    def _unready(self) -> list[str]:
        """Return the reasons why the broker is not ready, if any."""
        reasons = [] if self._failure is None else ["the broker has failed"]
        reasons += [f"{alarm['kind']} alarm" for alarm in self.clients.alarm_watch.active_alarms()]
        if self.data.node is not None and (waits := self.data.node.member.unready()):
            reasons.append(waits)
        return reasons

    def _facts(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "modules": build_kind(),
            "pid": os.getpid(),
            "uptime_s": int(time.monotonic() - self._began),
            "resident_bytes": resident_bytes(),
            "descriptors": open_descriptors(),
            "descriptors_max": descriptors_max(),
            "incarnation": self.incarnation,
            "url": self.url,
            "http_url": self.manage.url(),
            "connections": len(self.listener.transports),
            "connections_blocked": len(self.clients.alarms.blocked),
            "alarms": self.clients.alarm_watch.active_alarms(),
        }

    def _fail(self, error: BaseException) -> None:
        """Abort the broker after a failed store or an unexpected error. Nothing is confirmed after that."""
        if self._failure is None:
            self._failure = error
            self.turn.stop()
            self.vhosts.abort(error)
            self._failed.set()
