"""A stand-in for the broker that gives commands a prepared answer."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

import broker.cli
from broker.cli import control_client

for module in iter_modules(broker.cli.__path__, "broker.cli."):
    import_module(module.name)  # one that a test imports first would keep the stand-in


class Asked:
    """Replaces `control_client.ask`: returns `answer`, and records the last request."""

    def __init__(self) -> None:
        self.verb = ""
        self.arguments: dict[str, Any] = {}
        self.answer: Any = None

    def __call__(self, _folder: str, verb: str, **arguments: Any) -> Any:
        """Record the request, and return the answer."""
        arguments.pop("silence_s", None)
        self.verb, self.arguments = verb, arguments
        return self.answer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Provide the stand-in."""
    asked = Asked()
    monkeypatch.setattr(control_client, "ask", asked)
    return asked
