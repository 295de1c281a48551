"""Errors of MQTT clients. Each has a reason code of MQTT 5, and ends the connection or refuses a topic filter."""

from __future__ import annotations


class PacketError(ValueError):
    """A packet or topic filter that the broker refuses."""

    def __init__(self, reason_code: int, text: str) -> None:
        super().__init__(text)
        self.reason_code = reason_code
        self.text = text
