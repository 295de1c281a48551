"""Errors of an MQTT client: each has a reason code of MQTT 5, and ends the connection."""

from __future__ import annotations


class PacketError(ValueError):
    """A packet that is malformed, not allowed in this state, or asks for what the broker does not offer."""

    def __init__(self, reason_code: int, text: str) -> None:
        super().__init__(text)
        self.reason_code = reason_code
        self.text = text
