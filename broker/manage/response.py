"""Sends an answer, with the headers that all answers have and a deadline for each piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from broker.event_log import get_logger
from broker.manage.answers import json_answer
from broker.store.damage import StoreFailed

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Message, Scope, Send

    from broker.manage.client import ApiClient
    from broker.manage.refusal import HttpRefused

__all__ = ["answering", "refusal_response"]

USUAL: Final = (
    (b"server", b"SlotMQ"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)

_log = get_logger()


def refusal_response(refused: HttpRefused, *, rabbitmq: bool = False) -> Response:
    """Return the answer for a refusal, with RabbitMQ's words if asked."""
    headers = dict(refused.headers)
    if refused.fatal:
        headers["Connection"] = "close"
    return json_answer(refused.fields(rabbitmq=rabbitmq), refused.status, headers)


@asynccontextmanager
async def answering(scope: Scope, send: Send) -> AsyncIterator[Send]:
    """Answer one request: provide the `send` of its answer. An answer that has begun can only be broken off."""
    client: ApiClient = scope["state"]["client"]
    client.begin()
    try:
        yield _sending(send, client)
    except asyncio.CancelledError:
        if not client.gone():
            raise
    except StoreFailed as failed:
        _log.warning("http.answer_broken_off", conn=client.peer.name, reason=str(failed))
        client.abort()
    except TimeoutError:
        _log.debug("http.client_lost", conn=client.peer.name)
        client.abort()
    except Exception as error:  # noqa: BLE001 - one request must not end the broker
        _log.error("http.answer_broken_off", conn=client.peer.name, exc_info=error)
        client.abort()
    finally:
        client.done()


def _sending(send: Send, client: ApiClient) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message["headers"])
            names = {name.lower() for name, _value in given}
            usual = [(b"date", formatdate(usegmt=True).encode()), *(pair for pair in USUAL if pair[0] not in names)]
            if client.last and b"connection" not in names:
                usual.append((b"connection", b"close"))
            message["headers"] = usual + given
        async with asyncio.timeout(client.timeout_s):
            await send(message)

    return sending
