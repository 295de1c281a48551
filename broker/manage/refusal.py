"""Refusals of requests: a status, an error name for programs, and a reason for people."""

from __future__ import annotations

from typing import Final

from broker.amqp.errors import BrokerError, NodeLost, ProtocolError
from broker.core.definitions.reading import NotStored
from broker.operations.request import OperationRefused, PartMissing

ERRORS: Final = {
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
RABBITMQ_ERRORS: Final = {**ERRORS, 401: "not_authorised", 403: "not_authorised", 404: "Object Not Found"}
"""The error names under /api, which RabbitMQ's tools read."""

ACCESS_REFUSED: Final = 403  # AMQP's reply code
STATUS_OF_CODE: Final = {403: 401, 404: 404, 530: 401}
"""The status for AMQP's reply codes, 400 for all others. Source: rabbit_mgmt_util."""


class HttpRefused(Exception):
    """A request cannot be carried out.

    Shapes: `error` replaces the default error name of the status; `headers` are the headers that the status requires;
        `fatal` closes the connection after the answer; `shown` is the reason that a refused login gets under /api.
    Source: RabbitMQ's rabbit_web_dispatch_access_control, for the error name of a refused login.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        error: str | None = None,
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
        self._error = error
        self._shown = shown

    def fields(self, *, rabbitmq: bool = False) -> dict[str, str]:
        """Return the JSON object for the client; `rabbitmq` selects RabbitMQ's error names."""
        if rabbitmq and self._shown:
            return {"error": "not_authorized", "reason": self._shown}
        errors = RABBITMQ_ERRORS if rabbitmq else ERRORS
        return {"error": self._error or errors[self.status], "reason": self.reason}


def bad_request(reason: str) -> HttpRefused:
    """Return the refusal of an invalid request."""
    return HttpRefused(400, reason)


def not_found(reason: str = "Not Found") -> HttpRefused:
    """Return the refusal for a missing object."""
    return HttpRefused(404, reason)


def not_authorised(reason: str) -> HttpRefused:
    """Return the refusal of a user who lacks a tag or a permission. Source: RabbitMQ answers 401, not 403."""
    return HttpRefused(401, reason)


def refusal_of(error: Exception, *, rabbitmq: bool) -> HttpRefused | None:
    """Return the refusal for an error of the broker, or None for an unexpected error.

    `rabbitmq` selects the statuses of RabbitMQ's API.
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
            return HttpRefused(status, error.reply_text, "not_found")  # an unknown path has another error name
        return HttpRefused(status, error.reply_text if status != 400 else f"{error.reply_code} {error.reply_text}")
    return bad_request(str(error))
