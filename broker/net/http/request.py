"""One request: its target taken apart, its body read as JSON, every value checked where it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from broker.core.definitions.json_text import read_json
from broker.net.control_request import LARGEST, Request
from broker.net.http.refusal import HttpRefused, bad_request

__all__ = ["Headers", "HttpRequest", "header_map"]

PARAMETERS_MAX: Final = 32
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

Headers = Mapping[str, str]
"""Names in lower case; a name that came several times has its values joined by a comma, as RFC 9110 reads them."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request with its whole body. Shapes: `path` are the decoded words between its slashes."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    headers: Headers
    body: bytes = b""

    @classmethod
    def of(cls, method: str, target: str, headers: Headers, body: bytes = b"") -> HttpRequest:
        """Return the request for a target in origin or absolute form. Raises: HttpRefused."""
        try:
            parts = urlsplit(target)
            path = tuple(unquote_to_bytes(word).decode() for word in parts.path.split("/")[1:])
            # Kept as Latin-1 until decoded strictly: parse_qsl itself would replace what is no UTF-8.
            pairs = parse_qsl(parts.query, keep_blank_values=True, encoding="latin-1", max_num_fields=PARAMETERS_MAX)
            found = [(name.encode("latin-1").decode(), value.encode("latin-1").decode()) for name, value in pairs]
        except ValueError:
            raise bad_request("the target of the request cannot be read") from None
        query = dict(found)
        if len(query) < len(found):
            raise bad_request("a parameter is given twice")
        return cls(method, path, query, headers, body)

    # -- the query ----------------------------------------------------------------------------------------------------

    def only(self, known: Iterable[str]) -> None:
        """Refuse parameters that nothing here knows: a misspelt filter must not mean "all". Raises: HttpRefused."""
        unknown = sorted(self.query.keys() - set(known))
        if unknown:
            raise bad_request(f"no parameter '{unknown[0]}' here")

    def integer(self, name: str, default: int, high: int = LARGEST) -> int:
        """Return a parameter from 0 to `high`. Raises: HttpRefused."""
        text = self.query.get(name)
        return default if text is None else integer(name, text, high)

    # -- the body -----------------------------------------------------------------------------------------------------

    def fields(self, known: Iterable[str]) -> Request:
        """Return the body's JSON object, to read arguments from; no body is an empty one.

        Raises: HttpRefused for what is no JSON object, and for a field that nothing here knows.
        """
        try:
            found: Any = read_json(self.body) if self.body else {}
        except ValueError as error:
            raise bad_request(f"the body should be a JSON object: {error}") from None
        if not isinstance(found, dict):
            raise bad_request("the body should be a JSON object")
        unknown = sorted(found.keys() - set(known))
        if unknown:
            raise bad_request(f"no field '{unknown[0]}' here")
        return Request(found)

    def check_origin(self) -> None:
        """Refuse a change that another site's page asks a browser for: the browser would add the user's password.

        Raises: HttpRefused.
        """
        origin = self.headers.get("origin")
        if origin is None or self.method in READING:
            return
        if origin.partition("://")[2] != self.headers.get("host", ""):
            raise HttpRefused(403, "a page of another site may not change anything here")


def integer(name: str, text: str, high: int = LARGEST) -> int:
    """Return the number that a text is. Raises: HttpRefused."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and int(text) <= high):
        raise bad_request(f"'{name}' should be an integer from 0 to {high}")
    return int(text)


def header_map(pairs: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return headers by name."""
    found: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found
