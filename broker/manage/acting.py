"""AMQP connections within the process, over which the API acts as the caller of a request.

A user therefore has the same permissions, limits and error texts over HTTP as over AMQP. For features that AMQP lacks,
such as moving messages, the API uses the operations of the command line instead.
Source: RabbitMQ's management plugin, rabbit_mgmt_util:with_channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from pamqp import commands

from broker.amqp.client import ClientConnection, Received
from broker.amqp.codec import Method, encode_method
from broker.amqp.lenient_methods import GetAny, PublishAny
from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.client.link import CallRefused, ClientEvents, ClientLink
from broker.core.auth.peer import Peer
from broker.core.names import is_short_text
from broker.manage.call import Call
from broker.manage.refusal import HttpRefused, bad_request

CHANNEL: Final = 1
ACT_LIMIT_S: Final = 30.0  # a cluster without its database answers later, or never
CLOSED: Final = "the request is answered"
STATUS: Final = {0: 503, 320: 503, 403: 401, 404: 404, 530: 401, 541: 503}
"""HTTP statuses by AMQP reply code, 400 for other codes; the code is 0 if the broker did not process the method."""
ERRORS: Final = {404: "not_found"}


class CallerConnection(ClientEvents):
    """An AMQP connection with one channel that acts as the caller of a request.

    Raises: CallRefused if the broker refuses a method.
    """

    def __init__(self, name: str, vhost: str, alarms: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """`alarms` returns the raised alarms."""
        self._alarms = alarms
        self.connection = ClientLink(ClientConnection(vhost, None, properties={"connection_name": name}), self)
        self._returned = False
        self._settled: asyncio.Future[bool] | None = None

    async def call(self, method: Method) -> Any:
        """Call a method and return its answer. Raises: HttpRefused for a name that AMQP cannot carry."""
        check_names(method)
        return await self.connection.call(CHANNEL, method)

    async def publish(self, exchange: str, key: str, header: bytes, body: bytes) -> bool | None:
        """Publish a message and wait for its confirm. Return whether it was routed, or None if it was rejected.

        Raises: HttpRefused while an alarm blocks publishers, and for a name that AMQP cannot carry.
        """
        alarms = [str(alarm["kind"]) for alarm in self._alarms()]
        if alarms:
            raise HttpRefused(503, f"the {' and the '.join(alarms)} alarm blocks publishing")
        if self._settled is None:
            await self.call(commands.Confirm.Select())
        self._returned, self._settled = False, asyncio.get_running_loop().create_future()
        method = PublishAny(exchange=exchange, routing_key=key, mandatory=True)
        check_names(method)
        self.connection.client.publish(CHANNEL, encode_method(CHANNEL, method), header, body)
        self.connection.flush()
        ends: list[asyncio.Future[Any]] = [self._settled, self.connection.ended]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not self._settled.done():
            raise self.connection.refused
        return not self._returned if self._settled.result() else None

    async def get(self, queue: str, *, no_ack: bool = False) -> Received | None:
        """Get the next message of a queue, or None if there is none. With `no_ack`, it need not be settled."""
        answer = await self.call(GetAny(queue=queue, no_ack=no_ack))
        return answer if isinstance(answer, Received) else None

    def settle(self, tag: int, *, requeue: bool, ack: bool) -> None:
        """Ack, requeue or reject the messages up to a delivery tag; `acting` waits for the effect."""
        method: Method = (
            commands.Basic.Ack(tag, multiple=True) if ack else commands.Basic.Nack(tag, multiple=True, requeue=requeue)
        )
        self.connection.cast(CHANNEL, method)

    def settled(self, tag: int, *, multiple: bool, accepted: bool) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(accepted)

    def returned(self, message: Received) -> None:
        self._returned = True


@asynccontextmanager
async def acting(call: Call, vhost: str) -> AsyncIterator[CallerConnection]:
    """Yield a connection to a vhost that acts as the caller; its changes are stored when the block ends.

    Raises: HttpRefused if the broker refuses a method, and 503 if it does not answer in time.
    """
    name = f"http {call.client.peer.name}"
    client = CallerConnection(name, vhost, lambda: call.broker.facts()["alarms"])
    try:
        async with asyncio.timeout(ACT_LIMIT_S):
            peer = Peer(name, inside=call.user.name)
            await client.connection.dial_within(lambda end: call.broker.listener.attach(end, peer))
            await client.connection.open()
            yield client
        await client.connection.close(CLOSED)
        engine = call.broker.administration.vhosts.engines.get(vhost)
        if engine is not None:
            await engine.committer.drain()
    except CallRefused as refused:
        raise _refusal(refused) from None
    except TimeoutError:
        raise HttpRefused(503, "the broker did not answer in time") from None
    except OSError as error:
        raise HttpRefused(503, f"no connection within the broker: {error.strerror}") from None
    finally:
        await client.connection.close(CLOSED)


def check_names(method: Method) -> None:
    """Check that no name or key is too long for a method. Raises: HttpRefused."""
    for name, value in method:
        if isinstance(value, str) and not is_short_text(value):
            raise bad_request(f"{name} has at most {SHORT_STRING_MAX_BYTES} bytes")


def _refusal(refused: CallRefused) -> HttpRefused:
    """Return the HTTP refusal for a refused method, without the name of the AMQP reply code in its text."""
    status = STATUS.get(refused.code, 400)
    text = str(refused)
    return HttpRefused(status, text.partition(" - ")[2] or text if refused.code else text, ERRORS.get(status))
