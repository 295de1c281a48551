"""The MQTT listener, if the settings enable it. Otherwise MQTT's modules are not imported."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.event_log import get_logger
from broker.parts.clients import Clients
from broker.parts.data import Data
from broker.parts.part import Part, Shared
from broker.parts.ports import Ports

if TYPE_CHECKING:
    from broker.core.mqtt.connection import MqttConnection
    from broker.core.mqtt.context import MqttContext
    from broker.delivery.engine import Engine
    from broker.net.transport import Transport

CHECK_S: Final = 1.0  # how often `_load` checks whether the vhost was closed

_log = get_logger()


class Mqtt(Part):
    """Accept MQTT clients. The AMQP listener owns their connections and closes them."""

    def __init__(self, shared: Shared, ports: Ports, data: Data, clients: Clients) -> None:
        self._shared = shared
        self._ports = ports
        self._data = data
        self._clients = clients

    @property
    def port(self) -> int:
        """The port, or 0 without a listener."""
        return self._clients.listener.ports.get("mqtt", 0)

    @property
    def tls_port(self) -> int:
        """The port with TLS, or 0 without a listener."""
        return self._clients.listener.ports.get("mqtt/ssl", 0)

    async def start(self) -> None:
        """Read MQTT's stored messages, then accept clients. Raises: StoreFailed; CannotListen."""
        settings = self._shared.settings
        if not settings.mqtt.enabled:
            return
        from broker.core.mqtt.connection import MqttConnection  # noqa: PLC0415 - a start without MQTT is shorter
        from broker.core.mqtt.context import MqttClients, MqttContext, nothing  # noqa: PLC0415 - as above
        from broker.core.mqtt.mapping import MessageMapping  # noqa: PLC0415 - as above
        from broker.core.mqtt.retained import RetainedMessages  # noqa: PLC0415 - as above
        from broker.core.mqtt.session import MqttSessionOfConnection  # noqa: PLC0415 - as above

        node = self._data.node
        context = MqttContext(
            settings.mqtt,
            MessageMapping(settings.routing.words_max, settings.mqtt.exchange),
            MqttClients() if node is None else node.mqtt_clients,
            RetainedMessages if node is None else node.retained,
            default_vhost=settings.auth.default_vhost,
            qos_max=2 if node is None else 1,
        )

        async def forget(engine: Engine) -> None:
            context.forget(engine.vhost)

        await self._load(context)
        self._data.vhosts.on_open(lambda engine: context.load(engine.vhost, nothing))
        self._data.vhosts.before_close(forget)
        self._check_anonymous_user(settings.mqtt.anonymous_user)
        listener = self._clients.listener

        def machine(transport: Transport) -> MqttConnection:
            session = partial(listener.session_of, transport, MqttSessionOfConnection)
            mechanisms = listener.mechanisms(transport)
            return MqttConnection(session, listener.limits, transport, listener.log_error, context, mechanisms)

        bound = self._ports.bound
        await listener.serve("mqtt", bound.of("mqtt.port"), bound.of("mqtt.tls_port"), machine)

    def _check_anonymous_user(self, name: str) -> None:
        """Log a warning if the user of clients without a user name is missing, or an administrator."""
        user = self._clients.users.get(name)
        if name and user is None:
            advice = "clients without a user name are refused: slotmq user add"
            _log.warning("mqtt.anonymous_user_missing", user=name, advice=advice)
        elif user is not None and "administrator" in user.tags:
            advice = "everybody who reaches the port may do everything: name a user with few permissions"
            _log.warning("mqtt.anonymous_administrator", user=name, advice=advice)

    async def _load(self, context: MqttContext) -> None:
        """Build the indexes of MQTT's stored messages in each vhost. Raises: StoreFailed."""
        engines = self._data.vhosts.engines
        for name, engine in list(engines.items()):
            loaded = asyncio.Event()
            context.load(engine.vhost, loaded.set)
            while not loaded.is_set() and engines.get(name) is engine:
                engine.committer.check()
                with suppress(TimeoutError):
                    await asyncio.wait_for(loaded.wait(), CHECK_S)
