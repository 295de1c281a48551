"""Parse the target of a request: the words of its path, and its query."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from broker.manage.refusal import bad_request
from broker.operations.request import LARGEST

PARAMETERS_MAX: Final = 64


def path_words(raw_path: bytes) -> tuple[str, ...]:
    """Return the words of a path, each decoded separately, so that %2F is part of a word. Under /api a trailing slash
    is ignored, because clients such as Flower send it. Raises: HttpRefused.
    """
    text = raw_path.decode("latin-1")
    try:
        path = text if text.startswith("/") else urlsplit(text).path or "/"  # clients of a proxy send a whole URL
        words = [unquote_to_bytes(word).decode() for word in path.split("/")[1:]]
    except ValueError:
        raise bad_request("the target of the request cannot be read") from None
    if words[:1] == ["api"] and words[-1] == "":
        words.pop()
    return tuple(words)


def query_of(octets: bytes, repeats: Collection[str] = ()) -> Mapping[str, str]:
    """Return the parameters of a query. Only the names in `repeats` may be repeated, and the last value is returned.

    Raises: HttpRefused.
    """
    names = [name for name, _value in query_pairs(octets) if name not in repeats]
    if len(set(names)) < len(names):
        raise bad_request("a parameter is given twice")
    return dict(query_pairs(octets))


def query_pairs(octets: bytes) -> list[tuple[str, str]]:
    """Return the names and values of a query in order. Raises: HttpRefused."""
    try:
        # Decoded strictly afterwards: parse_qsl would replace invalid UTF-8.
        pairs = parse_qsl(
            octets.decode("latin-1"), keep_blank_values=True, encoding="latin-1", max_num_fields=PARAMETERS_MAX
        )
        return [(name.encode("latin-1").decode(), value.encode("latin-1").decode()) for name, value in pairs]
    except ValueError:
        raise bad_request("the target of the request cannot be read") from None


def check_parameters(query: Mapping[str, str], known: Collection[str]) -> None:
    """Refuse unknown parameters, because a misspelt filter must not mean "all". Raises: HttpRefused."""
    unknown = sorted(query.keys() - set(known))
    if unknown:
        raise bad_request(f"no parameter '{unknown[0]}' here")


def integer(name: str, text: str, high: int = LARGEST) -> int:
    """Return a parameter as an integer from 0 to `high`. Raises: HttpRefused."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and int(text) <= high):
        raise bad_request(f"'{name}' should be an integer from 0 to {high}")
    return int(text)
