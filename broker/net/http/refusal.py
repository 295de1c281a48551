"""What a client is refused with: a status, a word that programs read, and a line for people."""

from __future__ import annotations

from typing import Final

__all__ = ["HttpRefused", "bad_request", "not_found"]

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
    431: "header_too_large",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    505: "version_not_supported",
}


class HttpRefused(Exception):
    """A request cannot be carried out. Shapes: `headers` are those that the status asks for (Allow, WWW-Authenticate);
    `fatal` when nothing more can be read from the connection.
    """

    def __init__(
        self, status: int, reason: str, headers: tuple[tuple[str, str], ...] = (), *, fatal: bool = False
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers
        self.fatal = fatal

    @property
    def word(self) -> str:
        """What a program tells refusals apart by."""
        return WORDS[self.status]


def bad_request(reason: str) -> HttpRefused:
    """Return the refusal of what cannot be understood."""
    return HttpRefused(400, reason)


def not_found(reason: str) -> HttpRefused:
    """Return the refusal of what is not there."""
    return HttpRefused(404, reason)
