"""Refusals of requests: a status, a word for programs, and a line for people."""

from __future__ import annotations

from typing import Final

from broker.amqp.errors import BrokerError, NodeLost, ProtocolError
from broker.core.definitions.reading import NotStored
from broker.operations.request import OperationRefused, PartMissing

WORDS: Final = {
    400: "bad_request",
    401: "login_refused",
    403: "access_refused",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    413: "body_too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    417: "expectation_failed",
    421: "misdirected_request",
    426: "upgrade_required",
    429: "too_many_requests",
    431: "header_too_large",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    505: "version_not_supported",
}
RABBITMQ_WORDS: Final = {**WORDS, 401: "not_authorised", 403: "not_authorised", 404: "Object Not Found"}
"""The words under /api, where RabbitMQ's tools read them."""

ACCESS_REFUSED: Final = 403  # AMQP's reply code
STATUS_OF_CODE: Final = {403: 401, 404: 404, 530: 401}
"""The status for AMQP's reply codes, 400 for all others. Source: rabbit_mgmt_util."""


class HttpRefused(Exception):
    """A request cannot be carried out.

    Shapes: `word` replaces the usual one of the status; `headers` are those that the status asks for (Allow,
    WWW-Authenticate); `fatal` when nothing more can be read from the connection; `shown` is the reason of a refused
    login under /api. Source: RabbitMQ's rabbit_web_dispatch_access_control; a missing tag has another word.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        word: str | None = None,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        fatal: bool = False,
        shown: str = "",
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers
        self.fatal = fatal
        self._word = word
        self._shown = shown

    def fields(self, *, rabbitmq: bool = False) -> dict[str, str]:
        """Return the JSON object that the client gets, with RabbitMQ's words if asked."""
        if rabbitmq and self._shown:
            return {"error": "not_authorized", "reason": self._shown}
        words = RABBITMQ_WORDS if rabbitmq else WORDS
        return {"error": self._word or words[self.status], "reason": self.reason}


def bad_request(reason: str) -> HttpRefused:
    """Return the refusal of what cannot be understood."""
    return HttpRefused(400, reason)


def not_found(reason: str = "Not Found") -> HttpRefused:
    """Return the refusal for a missing object."""
    return HttpRefused(404, reason)


def not_authorised(reason: str) -> HttpRefused:
    """Return the refusal of a user who lacks a tag or a right. Source: RabbitMQ answers 401, and not 403."""
    return HttpRefused(401, reason)


def refusal_of(error: Exception, *, rabbitmq: bool) -> HttpRefused | None:
    """Return the refusal for an error of the broker, None for a defect.

    Under /api it is RabbitMQ's; elsewhere a missing permission is 403, and a refusal of the broker is a conflict.
    """
    if isinstance(error, HttpRefused):
        return error
    if isinstance(error, PartMissing):
        return not_found(str(error))
    if any(isinstance(one, NodeLost | NotStored) for one in (error, error.__cause__)):
        return HttpRefused(503, str(error))  # the same request may succeed later
    if isinstance(error, OperationRefused):  # an argument of the body
        return bad_request(str(error))
    if not isinstance(error, (BrokerError, ValueError)):
        return None
    if not rabbitmq:
        if isinstance(error, ProtocolError) and error.reply_code == ACCESS_REFUSED:
            return HttpRefused(403, error.reply_text.partition(" - ")[2])
        return HttpRefused(409, str(error))
    if isinstance(error, ProtocolError):
        status = STATUS_OF_CODE.get(error.reply_code, 400)
        if status == 404:
            return HttpRefused(status, error.reply_text, "not_found")  # a path that leads nowhere has another word
        return HttpRefused(status, error.reply_text if status != 400 else f"{error.reply_code} {error.reply_text}")
    return bad_request(str(error))
