"""The broker, wired together: the only file that knows every part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.administration.administration import Administration
from broker.administration.backups import Backups
from broker.administration.definitions_store import local_definitions
from broker.administration.opening import configured_users, open_all
from broker.administration.rehearsal import Rehearsal
from broker.bridging import ZmqPart
from broker.clustering import node_of
from broker.core.alarms import Alarms
from broker.core.auth.first_user import warn_of_guest
from broker.core.auth.permissions import Permissions
from broker.core.auth.usage import Usage
from broker.core.auth.users import Users
from broker.core.session.revocation import Revocation
from broker.delivery.clock import SteadyClock
from broker.delivery.engine import Engine
from broker.delivery.timers import Timers
from broker.delivery.turn import Turn
from broker.event_log import get_logger
from broker.manage.managed_broker import ManagedBroker
from broker.manage.samples import Samples
from broker.manage.totals import TOTAL_COUNTERS, TOTAL_NUMBERS, BrokerTotals
from broker.managing import ManagePart
from broker.net.address import Bound
from broker.net.alarm_watch import AlarmWatch, watermarks
from broker.net.certificate_watch import CertificateWatch
from broker.net.cluster_clients import ClusterClients
from broker.net.control import ControlSocket
from broker.net.control_verbs import control_verbs
from broker.net.control_verbs.unacked import answering
from broker.net.listener import STEPS, Listener
from broker.net.password_check import PasswordThreads, logins_of
from broker.net.publisher_throttle import STORE_BACKLOG_MAX_BYTES, PublisherThrottle, ThrottledConnection
from broker.net.tls import TlsContext
from broker.opened_data import open_data
from broker.overlay_node.part import OverlayPart
from broker.process_facts import process_facts
from broker.random_name import generate_name
from broker.reload import Reload, SettingsSource
from broker.settings import Settings
from broker.settings_change import in_force
from broker.stopping import Stopping
from broker.store.data_folder import DataFolder
from broker.store.files import Files
from broker.taps.taps import Taps
from broker.vhosts.broker_statistics import BrokerStatistics
from broker.vhosts.recovery_watch import RecoveryWatch
from broker.vhosts.vhosts import Vhosts

if TYPE_CHECKING:
    from broker.cluster.broker_node import BrokerNode

__all__ = ["BrokerServer"]

_log = get_logger()

OVERLAY_S: Final = 0.02  # between two looks of an overlay's brokers at the time


class BrokerServer:
    """One broker in one event loop. Raises: FolderBusy, FolderUnwritable, StoreFailed and OSError from `start`."""

    def __init__(
        self,
        settings: Settings,
        files: Files | None = None,
        clock: Callable[[], float] | None = None,
        source: SettingsSource | None = None,
    ) -> None:
        """Take the files, real ones by default, and the clock in seconds since 1970, which never goes back.

        `source` is where `reload` reads the settings again.
        """
        self.settings = settings
        self._on_stop: Callable[[], None] | None = None
        self.stopping = Stopping()
        self._reload = Reload(source, self._take_settings)
        self._clock = clock or SteadyClock()
        self._files = files or Files()
        self._path = Path(settings.server.data_dir).absolute()
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None
        self._folder: DataFolder
        self.recovery = RecoveryWatch()
        self.turn: Turn
        self.vhosts: Vhosts
        self.taps: Taps
        self.administration: Administration
        self.listener: Listener
        self.manage: ManagePart
        self.statistics: BrokerStatistics
        self.node: BrokerNode | None = None
        self.overlay = OverlayPart()
        self.zmq = ZmqPart()
        self.alarms: Alarms[ThrottledConnection]

    async def start(self) -> None:
        """Recover the data folder and begin to listen."""
        await self.recover()
        await self.serve()

    async def recover(self) -> None:
        """Bind the ports, lock the folder and recover it; no client is answered yet."""
        self._began = time.monotonic()
        loop = asyncio.get_running_loop()
        settings = self.settings
        self._tls = TlsContext(settings.tls) if settings.tls.is_on else None  # fails before anything listens
        self._bound = bound = Bound(settings)
        with ExitStack() as undo:
            undo.callback(bound.close)
            self.manage = ManagePart(settings)
            undo.callback(self.manage.close_ports)
            await self.manage.listen(self._tls, self.recovery.facts)
            self._folder, self._watch, slots = open_data(self._files, self._path, settings, self._clock)
            undo.callback(self._folder.close)
            self.turn = Turn(loop, self._clock, self._fail, settings.flow.read_budget_bytes)
            node = self.node = node_of(settings, self._folder, bound, self.turn, loop, self._fail)
            undo.pop_all()
        self._passwords = PasswordThreads(loop)
        ends = slots.view.ends
        self.vhosts = Vhosts(
            self._folder, settings, self.turn, loop, generate=generate_name, fail=self._fail, sealed=ends, shared=node
        )
        self._watch.start(self.turn, self.vhosts.log_positions)
        self.taps = Taps(slots, self.vhosts, settings, self.turn, self._fail)
        try:
            users = Users(configured_users(settings), now_s=time.monotonic)
            permissions = Permissions(users)
            self.usage = Usage(users)
            self.alarms = Alarms(watermarks(settings))
            self._throttle = PublisherThrottle(self.alarms, self.vhosts.pending_bytes)
            self.turn.check_backlog_by(self._throttle.turn, STORE_BACKLOG_MAX_BYTES)
            logins = logins_of(settings.auth, users, self._passwords.check)
            self.listener = Listener(
                settings,
                self.turn,
                self._throttle,
                logins=logins,
                permissions=permissions,
                usage=self.usage,
                vhosts=self.vhosts,
                is_down=self.vhosts.is_down,
                tls=self._tls,
            )
            Revocation(users, permissions, self.listener.sessions, self.vhosts)
            definitions = node.definitions if node is not None else local_definitions(self._files, self._path)
            self.administration = Administration(
                definitions,
                self.vhosts,
                users,
                permissions,
                vhosts_max=settings.limits.vhosts_max,
                close_connections=self.listener.force_close,
                fail=self._fail,
            )
            if node is not None:
                await node.start(ClusterClients(self.listener, self.alarms, self._throttle))
            rehearsal = self._rehearsal = Rehearsal(self.vhosts, settings, self.turn, generate_name)
            await open_all(self.administration, rehearsal, self._folder, definitions, settings, self.recovery)
            await self.overlay.start(settings, self.vhosts, self._folder, self._fail)
            self.zmq.open(settings, self.vhosts, self.listener, self.overlay)
            if node is not None:
                node.follow(self.administration)
            self._alarm_watch = AlarmWatch(self.alarms, self._throttle, self._folder.reserve, self.vhosts.save_space)
            verbs = control_verbs(
                self.administration,
                rehearsal,
                self.listener,
                self.taps,
                Backups(self._folder, self.administration, self.taps),
                self._facts,
                reload=self.reload,
                settings=lambda: in_force(self.settings),
                stop=self._ask_to_stop,
                cluster=None if node is None else node.member,
                ask_nodes=None if node is None else node.questions.ask,
                overlay=self.overlay,
                zmq=self.zmq.facts,
            )
            if node is not None:
                node.questions.answer_by(answering(verbs, settings.cluster.node))
            self._control = ControlSocket(self._folder.path, verbs)
            self._certificates = CertificateWatch(self._tls, [self.listener.renew_tls, self.manage.renew_tls])
            self._timers = Timers(loop, self._fail)
            self._start_timers(self._timers)
            self._folder.reserve.take()
            self._alarm_watch.measure()
            self.taps.start()
            self.statistics = BrokerStatistics(self.vhosts, self.usage)
            totals = BrokerTotals(self._path, self.vhosts, self.listener, self.statistics, self._files)
            self._managed = ManagedBroker(
                settings=lambda: self.settings,
                administration=self.administration,
                rehearsal=rehearsal,
                listener=self.listener,
                taps=self.taps,
                logins=logins,
                permissions=permissions,
                verbs=verbs,
                facts=self._facts,
                unready=self._unready,
                down=lambda: sorted(self.vhosts.offline),
                ports=self.manage.ports,
                incarnation=self.incarnation,
                files=self._files,
                cluster=None if node is None else node.member,
                overlay=self.overlay,
                zmq=self.zmq.facts,
                statistics=self.statistics,
                samples=Samples(settings.http.sample_interval_ms, TOTAL_NUMBERS, TOTAL_COUNTERS, totals.read),
            )
            warn_of_guest(users, logins.loopback_only)
        except BaseException:
            await self._give_up()
            raise

    async def serve(self) -> None:
        """Begin to answer clients and commands; the signal handlers must be installed by then."""
        try:
            await self.listener.start(self._bound.amqp, self._bound.tls)
            if self.settings.server.control_socket:
                await self._control.start()
            self.manage.serve(self._managed)
            self.overlay.connect()
            self.zmq.start()
        except BaseException:
            await self._give_up()
            raise
        self.started_s = time.monotonic() - self._began
        _log.info(
            "server.started",
            port=self.listener.port,
            tls_port=self.listener.tls_port or None,
            **self.manage.ports(),
            data_dir=str(self._folder.path),
            took_s=round(self.started_s, 3),
        )

    async def stop(self) -> None:
        """Finish accepted work, close the connections and write everything to disk."""
        _log.info("server.stopping", connections=len(self.listener.transports))
        await self.zmq.stop(self.settings.server.drain_timeout_ms / 1000)
        self.listener.refuse_new()
        self.listener.stop_reading()
        self.manage.refuse_new()
        try:
            await self.administration.close()
            await self.overlay.stop()
            if unwritten_bytes := self.vhosts.pending_bytes():
                self.stopping.wait_for("sync", bytes=unwritten_bytes)
            drain_timeout_s = self.settings.server.drain_timeout_ms / 1000
            await (self.vhosts.drain() if self.node is None else self.node.drain(drain_timeout_s))
            await asyncio.sleep(0)  # one turn writes the last confirms
            await asyncio.gather(
                self.listener.close(drain_timeout_s, lambda count: self.stopping.wait_for("clients", count=count)),
                self.manage.close(drain_timeout_s),
            )
            await self.taps.close(drain_timeout_s, lambda count: self.stopping.wait_for("slot files", count=count))
            if self.node is not None:
                self.stopping.wait_for("PostgreSQL")
                await self.node.drain(drain_timeout_s)
                await self.node.leave()
            await self.vhosts.stop(lambda vhost: self.stopping.wait_for("checkpoint", vhost=vhost))
            await self._watch.stop()
            self.stopping.finish()
        finally:  # a failed broker releases its port and its folder too
            self.drop_clients()
            self._timers.close()
            self._passwords.close()
            await self._control.close()
            self.taps.abort()
            self.vhosts.close()
            self._folder.close()
        _log.info("server.stopped")

    def stop_with(self, stop: Callable[[], None]) -> None:
        """Take the function that stops the process which runs this broker; the control socket calls it."""
        self._on_stop = stop

    def _ask_to_stop(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        """Ask the process to stop the broker, and report what the stop waits for. Raises: ValueError."""
        if self._on_stop is None:
            raise ValueError("this broker runs inside another program, which has to stop it")
        self.stopping.listen(tell)
        self._on_stop()

    def drop_clients(self) -> None:
        """Stop waiting for clients."""
        self.listener.abort()
        self.manage.abort()

    def run_due(self) -> None:
        """Run everything that is due by now, without waiting for a turn of the loop."""
        self.turn.read_clock()
        for engine in self.engines.values():
            engine.run_due()
        self.taps.tick()
        self.listener.close_overdue()
        self.turn.schedule()

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the broker, if one did."""
        return self._failure

    @property
    def at_rest(self) -> bool:
        """Whether no work is pending except what clients may still send."""
        busy = self.turn.scheduled or self.taps.busy or self.overlay.busy
        return not busy and all(engine.at_rest for engine in self.engines.values())

    async def wait_failed(self) -> BaseException:
        """Return the error that ended the broker; nothing was confirmed after it."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    @property
    def url(self) -> str:
        """The URL for a client, without a user, because half a login is worse than none."""
        host, listener = self.settings.server.host, self.listener
        scheme, port = ("amqp", listener.port) if listener.port else ("amqps", listener.tls_port)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"

    @property
    def incarnation(self) -> str:
        """The random number of this start, 32 hex digits, which is stored in the data folder."""
        return self._folder.incarnation

    @property
    def engines(self) -> dict[str, Engine]:
        """The engine of each vhost."""
        return self.vhosts.engines

    async def reload(self) -> dict[str, Any]:
        """Read settings and certificates again and take what may change at run time. Raises: NotReloaded."""
        return await self._reload.run(lambda: self.settings)

    async def _take_settings(self, settings: Settings) -> None:
        """Apply settings, none of which needs a restart. Raises: TlsUnusable, having changed nothing."""
        if self._tls is not None:
            self._tls.take(settings.tls)
        self.settings = settings
        self.listener.take_settings(settings)
        self.vhosts.take_settings(settings)
        self.taps.take_settings(settings)
        self._rehearsal.take_settings(settings)
        self.administration.take_settings(settings)
        self.alarms.take(watermarks(settings))
        self.manage.take_settings(settings)
        await self._certificates.renew()

    def _start_timers(self, timers: Timers) -> None:
        """Begin the periodic looks. What an idle broker costs is how often they wake it."""
        timers.every(lambda: 1 / STEPS, self.listener.step, self.vhosts.page, self.taps.tick)
        timers.every(lambda: self.settings.flow.check_interval_ms / 1000, self._alarm_watch.measure)
        timers.every(lambda: 1.0, self.vhosts.tick, self._watch.tick, self.zmq.tick)
        timers.every(lambda: self.settings.http.sample_interval_ms / 1000, self.manage.tick)
        timers.every(lambda: self.settings.tls.reload_interval_ms / 1000, self._certificates.look)
        if self.overlay.is_on:
            timers.every(lambda: OVERLAY_S, self.overlay.tick)

    def _unready(self) -> list[str]:
        """Return why the broker is not ready, if it is not."""
        reasons = [] if self._failure is None else ["the broker has failed"]
        reasons += [f"{alarm['kind']} alarm" for alarm in self._alarm_watch.standing()]
        if self.node is not None and (waits := self.node.member.unready()):
            reasons.append(waits)
        return reasons

    def _facts(self) -> dict[str, Any]:
        return {
            **process_facts(self._began),
            "incarnation": self.incarnation,
            "url": self.url,
            "http_url": self.manage.url(),
            "connections": len(self.listener.transports),
            "connections_blocked": len(self.alarms.blocked),
            "alarms": self._alarm_watch.standing(),
        }

    async def _give_up(self) -> None:
        """Release everything that a failed start acquired."""
        self.zmq.abort()
        self._bound.close()
        self.manage.close_ports()
        if self.node is not None:
            await self.node.leave()
        self._passwords.close()
        self.taps.abort()
        self.vhosts.close(unchanged=True)
        self._folder.close()

    def _fail(self, error: BaseException) -> None:
        """End the broker: a lost store, or a defect. Nothing is confirmed after it; recovery starts from the log."""
        if self._failure is None:
            self._failure = error
            self.turn.stop()
            self.vhosts.abort(error)
            self._failed.set()
