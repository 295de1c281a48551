"""Received frames as lines comparable between two brokers: generated names and the current time are replaced."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

from tests.differential.link import Heard
from tests.differential.wire import Typed

__all__ = ["Names", "line", "ordered"]

_MADE_UP: Final = re.compile(r"amq\.(?:gen|ctag)-[\w\-]{22}|amq\.rabbitmq\.reply-to\.[\w\-+/=.]+")
_LANES: Final = {"basic.return": 1, "confirm": 2, "basic.deliver": 3}
_DAY_S: Final = 86_400


class Names:
    """Translates one conversation's names between the wire and the transcript."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.made_up: list[str] = []

    def real(self, value: Any) -> Any:
        """Return a value of a step with the names used on the wire."""
        if isinstance(value, str):
            whole = value.replace("~", self.prefix)
            return re.sub(r"\$(\d)", lambda found: self._nth(int(found[1])), whole)
        if isinstance(value, Mapping):
            return {self.real(name): self.real(one) for name, one in value.items()}
        return [self.real(one) for one in value] if isinstance(value, list) else value

    def _nth(self, number: int) -> str:
        return self.made_up[number - 1] if number <= len(self.made_up) else f"unknown-{number}"

    def plain(self, value: Any) -> Any:
        """Return a received value with the names used in a transcript."""
        if isinstance(value, str):
            return _MADE_UP.sub(lambda found: self._number(found[0]), value.replace(self.prefix, "~"))
        if isinstance(value, Typed):
            near = value.letter == "T" and abs(value.value - time.time()) < _DAY_S
            return Typed("T", "now") if near else Typed(value.letter, self.plain(value.value))
        if isinstance(value, Mapping):
            return {self.plain(name): self.plain(one) for name, one in value.items()}
        return [self.plain(one) for one in value] if isinstance(value, list) else value

    def _number(self, name: str) -> str:
        kind = re.match(r"amq\.(gen|ctag|rabbitmq\.reply-to)", name)
        assert kind is not None
        if kind[1] == "ctag":
            return "<ctag>"
        if name not in self.made_up:
            self.made_up.append(name)
        return f"${self.made_up.index(name) + 1}"


def line(place: str, heard: Heard, names: Names, remark: str = "") -> str:
    """Return a received frame as one line."""
    fields = {name: value for name, value in heard.fields.items() if name != "delivery_tag"}
    said = [place, heard.name, *(f"{name}={names.plain(value)!r}" for name, value in fields.items())]
    if heard.name in ("basic.deliver", "basic.return", "basic.get-ok"):
        said += [f"{name}:{names.plain(value)!r}" for name, value in heard.properties.items()]
        body = heard.body if len(heard.body) <= 64 else heard.body[:8] + b"... %d bytes" % len(heard.body)
        said.append(repr(names.plain(body.decode("utf-8", "backslashreplace"))))
    return " ".join([*said, remark]).rstrip()


def lane(heard: Heard) -> tuple[int, str, int]:
    """Return the sort key of a method: replies, returns, confirms by tag, and deliveries by consumer."""
    if heard.name in ("basic.ack", "basic.nack"):
        return (2, "", heard.fields["delivery_tag"])
    if heard.name == "basic.deliver":
        return (3, heard.fields["consumer_tag"], 0)
    return (_LANES.get(heard.name, 0), "", 0)


def ordered(heard: list[tuple[str, int, Heard, str]]) -> list[str]:
    """Return the lines of a step sorted by connection, channel and `lane`, between which no order is guaranteed."""
    return [text for _, _, _, text in sorted(heard, key=lambda one: (one[0], one[1], lane(one[2])))]
