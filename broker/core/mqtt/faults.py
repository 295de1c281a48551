"""Errors that close an MQTT connection with a reason code, and the reason codes that correspond to AMQP's errors."""

from __future__ import annotations

from typing import Final

from broker.amqp.errors import ChannelError, ConnectionFault, ProtocolError
from broker.mqtt.errors import PacketError
from broker.mqtt.reason_codes import (
    ADMINISTRATIVE_ACTION,
    FILTER_INVALID,
    IMPLEMENTATION_ERROR,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    SERVER_SHUTTING_DOWN,
    SERVER_UNAVAILABLE,
    TAKEN_OVER,
    UNSPECIFIED,
)

FORCED: Final = 320
REASON_OF: Final = {
    FORCED: ADMINISTRATIVE_ACTION,
    403: NOT_AUTHORIZED,
    404: IMPLEMENTATION_ERROR,
    405: NOT_AUTHORIZED,
    406: IMPLEMENTATION_ERROR,
    530: NOT_AUTHORIZED,
    541: UNSPECIFIED,
}
SHUTDOWN: Final = "'shutdown'"


class PacketFault(ConnectionFault):
    """An error that closes the connection with a reason code of MQTT."""

    def __init__(self, reason_code: int, text: str, reply_code: int = 501) -> None:
        super().__init__(reply_code, text)
        self.reason_code = reason_code
        self.text = text


class TakenOver(PacketFault):
    """Another connection now uses the client id of this one."""

    def __init__(self) -> None:
        super().__init__(TAKEN_OVER, "another connection took over the client id", FORCED)


def reason_of(error: ProtocolError | PacketError) -> tuple[int, str]:
    """Return the reason code and the text that report an error to the client."""
    if isinstance(error, PacketFault | PacketError):
        return error.reason_code, error.text
    text = error.reply_text.partition(" - ")[2]
    if error.reply_code == FORCED and SHUTDOWN in text:
        return SERVER_SHUTTING_DOWN, text
    if "limit" in text and error.reply_code in (406, 530):
        return QUOTA_EXCEEDED, text
    if error.reply_code == 541 and "is down" in text:
        return SERVER_UNAVAILABLE, text
    if isinstance(error, ChannelError) and "binding key" in text:
        return FILTER_INVALID, text
    return REASON_OF.get(error.reply_code, UNSPECIFIED), text
