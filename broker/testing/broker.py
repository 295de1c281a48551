"""The broker under test: in the test's event loop with `async with`, or in its own thread with `with`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from broker.administration.definitions import Draft
from broker.amqp.codec import publish_fields
from broker.amqp.errors import ProtocolError
from broker.core.queue.queue import Queue
from broker.core.session.channel import SessionOfChannel
from broker.core.vhost import Vhost
from broker.server import BrokerServer as Server
from broker.settings import Settings
from broker.settings.problem import problem_lines
from broker.store.files import Files
from broker.store.memory_files import MemoryFiles
from broker.testing import log
from broker.testing.clock import VirtualClock
from broker.testing.views import Published, QueueView, queue_view

T = TypeVar("T")

QUIET_CHECKS: Final = 5  # the broker is idle after this many checks without a change
CHECK_INTERVAL_S: Final = 0.001
IDLE_TIMEOUT_S: Final = 10
FOLDER: Final = Path("/slotmq")  # in memory
EVERYTHING: Final = ".*"
DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    # A client that a test did not close must not delay the end of the broker.
    "server": {"port": 0, "data_dir": FOLDER, "control_socket": False, "drain_timeout_ms": 100},
    "store": {"disk_free_min_bytes": 0, "reserve_bytes": 0},
    "memory": {"alarm_ratio": 1.0},  # the memory use of the test process must not block publishers
    "http": {"enabled": False, "port": 0},
    "metrics": {"enabled": False, "port": 0},
    "mqtt": {"port": 0, "tls_port": 0},
}


class Broker:
    """Run a broker on a free port of 127.0.0.1, with nothing on disk, and inspect its state.

    Settings are passed by section, as in the settings file: `Broker(limits={"queues_max": 3})`. `users` maps names to
    passwords, in place of guest; `vhosts` exist besides "/"; `mqtt=True` accepts MQTT clients. Entering the same object
    again restarts the broker.
    Invariant: the clock moves only when the test advances it (`broker.clock.advance(60)`); timeouts of connections use
        real time.
    Raises: ValueError for invalid settings, with one line for each; on entering, BrokerError, OSError or ValueError if
        the broker cannot start; on leaving, the error that ended the broker, if any.
    """

    def __init__(
        self,
        *,
        users: Mapping[str, str] | None = None,
        vhosts: Iterable[str] = (),
        clock: VirtualClock | None = None,
        files: Files | None = None,
        mqtt: bool | Mapping[str, Any] = False,
        **sections: Mapping[str, Any],
    ) -> None:
        """`files` are in memory by default; with other files, `server={"data_dir": ...}` names their folder.

        `mqtt` may also be a mapping of settings for the MQTT listener, which is then enabled.
        """
        if mqtt:
            sections["mqtt"] = {"enabled": True, **(mqtt if isinstance(mqtt, Mapping) else {})}
        given: dict[str, Any] = {**DEFAULTS, **sections}
        for section, keys in DEFAULTS.items():
            given[section] = {**keys, **sections.get(section, {})}
        if "tls" in sections:
            given["tls"] = {"port": 0, **sections["tls"]}
        if users is not None:
            given["auth"] = {"users": dict(users), **sections.get("auth", {})}
        try:
            self.settings = Settings(**given)
        except ValidationError as error:
            raise ValueError("\n".join(problem_lines(error.errors()))) from None
        self.clock = clock or VirtualClock()
        self.published: list[Published] = []
        self._files = files or MemoryFiles()
        self._vhosts = tuple(vhosts)
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._thread: threading.Thread | None = None

    # -- running ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start the broker in the running loop."""
        self._check_not_running()
        log.redirect_events()
        server = Server(self.settings, self._files, clock=self.clock)
        try:
            await server.start()
            try:
                await self._add_vhosts(server)
            except BaseException:
                await server.stop()
                raise
        except BaseException:
            log.restore_events()
            raise
        server.listener.channel_opened = self._record_publishes
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._server = server
        self.clock.attach(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server, self._loop = self._server, None, None
        assert server is not None
        self.clock.detach(self)
        try:
            await server.stop()
        finally:
            log.restore_events()

    def __enter__(self) -> Self:
        """Start the broker in its own thread: for blocking clients, and for tests without an event loop."""
        self._check_not_running()
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(loop,), name="slotmq", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.__aenter__(), loop).result()
        except BaseException:
            self._end_thread(loop)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = self._running_loop()
        try:
            asyncio.run_coroutine_threadsafe(self.__aexit__(kind, error, trace), loop).result()
        finally:
            self._end_thread(loop)

    @property
    def server(self) -> Server:
        """The broker itself, for anything that this class does not offer. Raises: RuntimeError if it is not running."""
        if self._server is None:
            raise RuntimeError("the broker does not run: use it as a context manager")
        if self._server.failure is not None:
            raise RuntimeError("the broker has failed") from self._server.failure
        return self._server

    # -- addresses ----------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self.server.listener.port

    @property
    def tls_port(self) -> int:
        """The AMQP port with TLS, or 0 without a certificate in `tls`."""
        return self.server.listener.tls_port

    @property
    def mqtt_port(self) -> int:
        """The MQTT port, or 0 without `mqtt`."""
        return self.server.mqtt.port

    @property
    def mqtt_url(self) -> str:
        """The URL for an MQTT client, with the first user: mqtt://guest:guest@127.0.0.1:PORT."""
        return f"mqtt://{self._login()}@127.0.0.1:{self.mqtt_port}"

    @property
    def url(self) -> str:
        """The URL for a client, with the first user: amqp://guest:guest@127.0.0.1:PORT/%2F."""
        return self.url_of("/")

    def url_of(self, vhost: str, user: str | None = None) -> str:
        """Return the URL of a vhost for a user defined in the settings. Raises: KeyError for any other user."""
        return f"amqp://{self._login(user)}@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    def _login(self, user: str | None = None) -> str:
        auth = self.settings.auth
        users = {**auth.users, **({auth.default_user: auth.default_pass} if auth.begins_with_default_user else {})}
        name = next(iter(users)) if user is None else user
        return f"{quote(name, safe='')}:{quote(users[name].get_secret_value(), safe='')}"

    # -- state --------------------------------------------------------------------------------------------------------

    def queue(self, name: str, vhost: str = "/") -> QueueView:
        """Return the current state of a queue. Raises: KeyError if there is no such queue."""
        return self._call(lambda: queue_view(self._queue(name, vhost)))

    def queues(self, vhost: str = "/") -> list[str]:
        return self._call(lambda: sorted(self._vhost(vhost).queues))

    def exchanges(self, vhost: str = "/") -> list[str]:
        """Return the names of the exchanges, including the predeclared ones."""
        return self._call(lambda: sorted(self._vhost(vhost).exchanges))

    def bindings(self, queue: str, vhost: str = "/") -> list[tuple[str, str]]:
        """Return the exchange and the binding key of each binding of a queue."""
        return self._call(
            lambda: [(binding.exchange, binding.key) for binding, _ in self._queue(queue, vhost).incoming_bindings]
        )

    async def idle(self) -> None:
        """Wait until the broker has processed all requests, and sent all deliveries and confirms.

        Raises: TimeoutError if it is still busy after ten seconds, for example because a client keeps publishing.
        """
        loop = self._running_loop()
        if loop is asyncio.get_running_loop():
            await self._idle()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._idle(), loop))

    def wait_idle(self) -> None:
        """Wait like `idle`, but without an event loop. Raises: TimeoutError; RuntimeError in the broker's loop."""
        loop = self._running_loop()
        if threading.get_ident() == self._thread_id:
            raise RuntimeError("the broker runs in this loop, which must not wait: await idle()")
        asyncio.run_coroutine_threadsafe(self._idle(), loop).result()

    # -- the clock ----------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """Return the time of the next action, such as an expiry, in milliseconds since 1970, or None."""
        return self._call(self._next_due_ms)

    def run_due(self) -> None:
        """Run everything that is due by the clock."""
        self._call(self.server.run_due)

    # -- internals ----------------------------------------------------------------------------------------------------

    def _next_due_ms(self) -> int | None:
        due = [engine.deadlines.next_ms for engine in self.server.engines.values()]
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def _check_not_running(self) -> None:
        if self._server is not None:
            raise RuntimeError("the broker runs already")

    async def _add_vhosts(self, server: Server) -> None:
        administration = server.administration
        # After a restart they already exist.
        names = [name for name in dict.fromkeys(self._vhosts) if name not in administration.vhosts]

        def add(draft: Draft) -> None:
            administration.check_new_vhosts(draft, names)
            for name in names:
                draft.add_vhost(name, {})
                for user in draft.users:
                    if not draft.users.is_configured(user):  # configured users have all rights
                        draft.permissions.set(user, name, EVERYTHING, EVERYTHING, EVERYTHING)

        if names:
            await administration.change(add)

    async def _idle(self) -> None:
        quiet = 0
        before = self._progress()
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                while quiet < QUIET_CHECKS:
                    await asyncio.sleep(CHECK_INTERVAL_S)
                    now = self._progress()
                    quiet = quiet + 1 if now == before and self.server.at_rest else 0
                    before = now
        except TimeoutError:
            raise TimeoutError(f"the broker is still busy after {IDLE_TIMEOUT_S} s") from None

    def _progress(self) -> tuple[int, ...]:
        connections = [transport.connection for transport in self.server.listener.transports]
        read, sent = (sum(getattr(connection, name) for connection in connections) for name in ("received", "sent"))
        return len(self.published), len(connections), read, sent

    def _record_publishes(self, session: SessionOfChannel) -> None:
        """Record the publishes of a channel; the broker's own publish path stays unchanged."""
        session.rewired = self._record_publishes
        publish, publish_run, connection = session.publish, session.publish_run, session.channel.connection

        def recorded(payload: bytes, header: bytes, body: bytes) -> None:
            self._record(payload, header, body)
            publish(payload, header, body)

        def recorded_run(payloads: list[bytes], headers: list[bytes], bodies: list[bytes], start: int) -> int:
            # Publish each run of equal exchange and key separately, so that a refused message is the first of its run.
            at = start
            for payload, equal in groupby(payloads[start:]):
                end = at + len(list(equal))
                try:
                    published = at + publish_run(payloads[at:end], headers[at:end], bodies[at:end], 0)
                except ProtocolError:
                    self._record(payload, headers[at], bodies[at])
                    raise
                for index in range(at, published):
                    self._record(payload, headers[index], bodies[index])
                at = published
                if at < end or connection.held:
                    break
            return at

        session.publish, session.publish_run = recorded, recorded_run

    def _record(self, payload: bytes, header: bytes, body: bytes) -> None:
        exchange, key, mandatory, _immediate = publish_fields(payload)
        self.published.append(Published(exchange, key, body, mandatory, header))

    def _vhost(self, name: str) -> Vhost:
        return self.server.vhosts[name]

    def _queue(self, name: str, vhost: str) -> Queue:
        queues = self._vhost(vhost).queues
        if name not in queues:
            raise KeyError(f"no queue '{name}' in vhost '{vhost}'")
        return queues[name]

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function in the thread of the broker's loop, and return its result."""
        loop = self._running_loop()
        if threading.get_ident() == self._thread_id:
            return function()

        async def call() -> T:
            return function()

        coroutine: Coroutine[Any, Any, T] = call()
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the broker does not run: use it as a context manager")
        return self._loop

    def _end_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(loop.stop)
        assert self._thread is not None
        self._thread.join()
        self._thread = None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
