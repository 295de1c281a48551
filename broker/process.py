"""The broker as a process: runs until a signal, and ends with an exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import structlog

from broker.amqp.errors import StoreFailed
from broker.collector import Collector
from broker.server import Broker
from broker.settings import Settings

__all__ = ["run"]

_log = structlog.get_logger()


def run(settings: Settings) -> int:
    """Runs the broker until SIGTERM or SIGINT and returns the exit code.

    Raises: what `Broker.recover` raises; StoreFailed when the store failed later.
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
    loop = asyncio.get_running_loop()
    collector = Collector(broker, loop)
    with collector.paused():
        await broker.recover()  # a signal until here ends the process at once: it has answered nobody
    stop = asyncio.Event()

    def asked() -> None:
        """Stops in order; asked again, without waiting for clients."""
        if stop.is_set():
            broker.drop_clients()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    if settings.tls.is_on:  # without anything to read again it goes on meaning that the terminal is gone
        loop.add_signal_handler(signal.SIGHUP, broker.reload)
    await broker.serve()
    collector.start()
    print(broker.ready_line(), flush=True)
    failed = asyncio.ensure_future(broker.wait_failed())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    collector.close()
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
