"""A broker that answers commands as a test says."""

from __future__ import annotations

from typing import Any

import pytest

from broker.cli import control_client


class Asked:
    """Stands in for the running broker: has its next answer, and records what it was asked last."""

    def __init__(self) -> None:
        self.verb = ""
        self.arguments: dict[str, Any] = {}
        self.answer: Any = None

    def __call__(self, _folder: str, verb: str, **arguments: Any) -> Any:
        """Record the request, and answer."""
        arguments.pop("silence_s", None)
        self.verb, self.arguments = verb, arguments
        return self.answer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Provide a broker with prepared answers."""
    asked = Asked()
    monkeypatch.setattr(control_client, "ask", asked)
    return asked
