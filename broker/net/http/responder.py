"""Answers a request: finds its route, asks who wants to know, and turns whatever goes wrong into an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.amqp.errors import BrokerError
from broker.event_log import get_logger
from broker.net.control_request import ControlRefused
from broker.net.http.answer import Answer, refusal_answer
from broker.net.http.refusal import HttpRefused
from broker.net.http.routes import Call
from broker.store.damage import StoreFailed

if TYPE_CHECKING:
    from broker.net.http.conversation import Client
    from broker.net.http.login import BasicLogin
    from broker.net.http.request import HttpRequest
    from broker.net.http.routes import RouteTable

__all__ = ["Respond"]

_log = get_logger()


class Respond:
    """Answers requests by a table of routes."""

    def __init__(self, table: RouteTable, login: BasicLogin) -> None:
        self._table = table
        self._login = login

    async def __call__(self, request: HttpRequest, client: Client) -> Answer:
        """Return the answer, whatever happens."""
        try:
            return await self._answer(request, client)
        except HttpRefused as refused:
            return refusal_answer(refused)
        except ControlRefused as refused:  # an argument of the body
            return refusal_answer(HttpRefused(400, str(refused)))
        except StoreFailed as failed:
            _log.warning("http.store_failed", conn=client.peer.name, reason=str(failed))
            return refusal_answer(HttpRefused(503, "the store cannot be read or written; the broker's log says why"))
        except (BrokerError, ValueError) as error:  # what the broker refuses as things stand
            return refusal_answer(HttpRefused(409, str(error)))
        except Exception as error:  # noqa: BLE001 - one request must not end the broker
            _log.exception("http.failed", conn=client.peer.name, method=request.method)
            return refusal_answer(HttpRefused(500, f"internal error: {type(error).__name__}"))

    async def _answer(self, request: HttpRequest, client: Client) -> Answer:
        route, words = self._table.find(request)
        if route.probe is not None:
            return route.probe(request)
        assert route.respond is not None
        user = await self._login.user(request.headers, client.peer, client.gone)
        request.check_origin()
        return await route.respond(Call(request, words, user))
