"""HTTP: the API, the page and the metrics, if the settings enable them. Otherwise their modules are not imported."""

from __future__ import annotations

import asyncio
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from broker.amqp.errors import BrokerError
from broker.event_log import get_logger
from broker.net.address import CannotListen, bind, close
from broker.parts.part import Part, Shared
from broker.settings import Settings
from broker.settings.access import HttpPort

if TYPE_CHECKING:
    from broker.manage.call import ApiRoute
    from broker.manage.listener import ManageListener
    from broker.manage.managed_broker import ManagedBroker
    from broker.manage.probes import Gate
    from broker.parts.ports import Ports

PORTS: Final = ("http", "metrics")
EXTRA: Final = "slotmq[manage]"
NEEDED: Final = ("starlette", "uvicorn", "msgspec")  # the packages of the extra

_log = get_logger()


class Http(Part):
    """The ports of the HTTP API and of the metrics, and their clients.

    Invariant: a port that the settings require is open, or the start fails. With "auto" a closed port is logged.
    """

    def __init__(self, shared: Shared, ports: Ports) -> None:
        self._shared = shared
        self._ports = ports
        self._bound: dict[str, list[socket.socket]] = {}
        self._listeners: dict[str, ManageListener] = {}
        self._gates: dict[str, Gate] = {}
        self._broker: ManagedBroker | None = None

    async def open(self) -> None:
        """Bind the ports and answer probes. Raises, for a required port: BrokerError, AddressTaken, CannotListen."""
        try:
            for name in PORTS:
                self._bind(name, getattr(self._shared.settings, name))
            await self._listen()
        except BaseException:
            await self.close()
            raise

    def _bind(self, name: str, port: HttpPort) -> None:
        if port.enabled is False:
            return
        missing = next((package for package in NEEDED if find_spec(package) is None), None)
        if missing is not None:
            reason = f"{name} needs {EXTRA}: no module {missing}"
            if port.is_required:
                raise BrokerError(reason)
            _log.info("http.off", port=name, reason=reason)
            return
        setting = f"{name}.host" if port.host else "server.host"
        try:
            self._bound[name] = bind(self._shared.settings.host_of(port), port.port, f"{name}.port", setting)
        except BrokerError as error:
            if port.is_required:
                raise
            _log.warning("http.off", port=name, reason=str(error))

    @property
    def is_on(self) -> bool:
        """Whether any port is open."""
        return bool(self._bound)

    def url(self, name: str = "http") -> str | None:
        """Return the URL of a port, or None if it is not open."""
        listener = self._listeners.get(name)
        return None if listener is None else listener.url

    def port(self, name: str = "http") -> int:
        """Return the number of a port, or 0 if it is not open."""
        listener = self._listeners.get(name)
        return 0 if listener is None else listener.port

    def ports(self) -> dict[str, int | None]:
        """Return the numbers of all ports by name, with None for closed ones."""
        return {f"{name}_port": self.port(name) or None for name in PORTS}

    def clients(self, name: str = "http") -> int:
        """Return how many clients are connected to a port."""
        listener = self._listeners.get(name)
        return 0 if listener is None else listener.clients

    async def _listen(self) -> None:
        if not self.is_on:
            return
        from broker.manage.listener import ManageListener  # noqa: PLC0415 - a start without HTTP is shorter
        from broker.manage.probes import Gate  # noqa: PLC0415 - as above

        settings = self._shared.settings
        for name, bound in list(self._bound.items()):
            port: HttpPort = getattr(settings, name)
            gate = Gate(self._shared.recovery.facts)
            listener = ManageListener(gate, settings, settings.host_of(port), self._ports.tls if port.tls else None)
            try:
                await listener.start(bound)
            except CannotListen as error:  # another process had bound the port too, and listened first
                if port.is_required:
                    raise
                close(self._bound.pop(name))
                _log.warning("http.off", port=name, reason=str(error))
                continue
            self._gates[name] = gate
            self._listeners[name] = listener

    def serve(self, broker: ManagedBroker) -> None:
        """Answer all requests; until now only probes were answered."""
        if not self.is_on:
            return
        from broker.manage.app import application, metrics_routes  # noqa: PLC0415 - as above

        self._broker = broker
        for name, gate in self._gates.items():
            gate.open(application(broker, self._http_routes() if name == "http" else metrics_routes()))

    def _http_routes(self) -> list[ApiRoute]:
        """Return the routes of the HTTP port, with MQTT over WebSocket if MQTT is enabled."""
        from broker.manage.app import http_routes  # noqa: PLC0415 - as above

        routes = http_routes()
        if self._shared.settings.mqtt.enabled:
            from broker.manage import websocket  # noqa: PLC0415 - as above

            routes += websocket.ROUTES
        return routes

    def tick(self) -> None:
        """Sample the broker's statistics; called once per sample interval."""
        if self._broker is not None:
            self._broker.samples.tick()

    async def apply_settings(self, settings: Settings) -> None:
        for listener in self._listeners.values():
            listener.apply_settings(settings)

    async def renew_tls(self) -> None:
        """Accept new clients with the current certificate."""
        for listener in self._listeners.values():
            await listener.renew_tls()

    def refuse_new(self) -> None:
        """Accept no more clients and requests."""
        for listener in self._listeners.values():
            listener.refuse_new()

    async def end_clients(self, timeout_s: float) -> None:
        """Wait until all requests are answered, and abort those that take longer than the timeout."""
        if self._broker is not None:
            await self._broker.samples.close()
        await asyncio.gather(*(listener.close(timeout_s) for listener in self._listeners.values()))
        if self._broker is not None:
            self._broker.reads.close()

    def abort(self) -> None:
        """Abort all remaining connections."""
        for listener in self._listeners.values():
            listener.abort()

    async def close(self) -> None:
        """Release the ports."""
        self.refuse_new()
        self.abort()
        for bound in self._bound.values():
            close(bound)
        self._bound = {}
