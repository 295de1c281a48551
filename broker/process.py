"""Run the broker as a process until it is stopped, and return an exit code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

from broker import __version__
from broker.amqp.errors import UNEXPECTED
from broker.collector import Collector
from broker.event_log import get_logger
from broker.heap import Heap, keep_freed_memory
from broker.reload import NotReloaded, SettingsSource
from broker.server import BrokerServer
from broker.settings import Settings
from broker.signals import STOPS, Signals
from broker.store.damage import StoreFailed
from broker.systemd import Systemd
from broker.tasks import Tasks, first_ended

_log = get_logger()


def run(settings: Settings, source: SettingsSource, signals: Signals) -> int:
    """Run the broker until SIGTERM, SIGINT, a command to stop or a failure, and return the exit code.

    On SIGHUP it reloads its settings from `source`.
    Raises: what `BrokerServer.start` raises; StoreFailed if the store fails later.
    """
    keep_freed_memory()
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # not available on Windows and PyPy: asyncio's own loop
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_serve(settings, source, signals))


async def _serve(settings: Settings, source: SettingsSource, signals: Signals) -> int:
    broker = BrokerServer(settings, source=source)
    loop = asyncio.get_running_loop()
    systemd = Systemd(os.environ, os.getpid(), loop, broker.shared.recovery.facts)
    systemd.start()
    try:
        return await _serve_until_stopped(broker, loop, systemd, signals)
    finally:
        signals.close()  # the listeners need the loop, which is closed next
        systemd.close()


async def _serve_until_stopped(
    broker: BrokerServer, loop: asyncio.AbstractEventLoop, systemd: Systemd, signals: Signals
) -> int:
    collector = Collector(loop)

    def free() -> Iterator[None]:
        yield from broker.free_computed()
        collector.collect()

    heap = Heap(loop, lambda: broker.turn.count, free)
    stop = asyncio.Event()
    recovered = False

    async def recover() -> None:
        nonlocal recovered
        await broker.recover()
        recovered = True

    def request_stop() -> None:
        """Cancel the recovery, or stop the broker cleanly; a second request drops its clients."""
        systemd.stopping()
        if recovered and stop.is_set():
            broker.drop_clients()
        stop.set()

    signals.listen(lambda: loop.call_soon_threadsafe(request_stop), *STOPS)
    with collector.paused():
        await first_ended(recover(), stop.wait())
    if not recovered:
        _log.info("server.stopped")
        return 0
    broker.stop_with(stop.set)
    await broker.serve()
    reloads = Tasks.logged("settings.not_reloaded")

    def reload() -> None:
        reloads.start(_reload(broker, systemd))

    signals.listen(lambda: loop.call_soon_threadsafe(reload), signal.SIGHUP)
    collector.start()
    broker.step_with(collector.collect_young)
    print(ready_line(broker), flush=True)
    systemd.ready(_status(broker))
    heap.start()
    await first_ended(broker.wait_failed(), stop.wait())
    signals.listen(lambda: None, signal.SIGHUP)  # no reload during the stop
    collector.close()
    heap.close()
    if broker.failure is None:
        systemd.stopping()
        broker.shared.stopping.listen(systemd.waiting)
        await first_ended(broker.stop(), broker.wait_failed())
    return 0 if broker.failure is None else await _failed(broker, broker.failure)


def ready_line(broker: BrokerServer) -> str:
    """Return the line that is printed when the broker is ready: its addresses, a user and the data folder."""
    users, first = broker.administration.users, broker.settings.auth.default_user
    user = first if first in users else next(iter(users), "nobody")
    listener = broker.listener
    also = f", with TLS on port {listener.tls_port}" if listener.port and listener.tls_port else ""
    http = broker.manage.url()
    also += "" if http is None else f", HTTP at {http}"
    data = broker.settings.server.data_dir.absolute()
    return f"SlotMQ {__version__} is ready at {broker.url} (user {user}){also}, data in {data}"


def _status(broker: BrokerServer) -> str:
    return f"Ready at {broker.url}"


async def _reload(broker: BrokerServer, systemd: Systemd) -> None:
    systemd.reloading()
    try:
        await broker.reload()
    except NotReloaded:
        pass  # it was logged
    finally:
        systemd.ready(_status(broker))


async def _failed(broker: BrokerServer, error: BaseException) -> int:
    """Close the connections with the reason, and return the exit code. Raises: StoreFailed if that is the error."""
    broker.listener.announce_failure(
        f"the store failed: {error.reason}" if isinstance(error, StoreFailed) else UNEXPECTED
    )
    if broker.data.node is not None:
        broker.data.node.database.abort()
    await asyncio.sleep(0)  # uvloop writes at the end of an iteration of the loop
    if isinstance(error, StoreFailed):
        raise error
    _log.error("server.crashed", exc_info=error)
    return 1
