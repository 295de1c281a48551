"""The errors that the broker raises, and their consequences.

    BrokerError
    |- ProtocolError          carries an AMQP reply code, its text, and the method at fault
    |  |- ChannelError        soft: channel.close
    |  '- ConnectionFault     hard: connection.close
    |- Refused                handshake or authentication: the client is not admitted
    |- NotNow                 the broker cannot start, for a reason that may pass
    |- NodeLost               the node lost its place in its cluster, and everything uncommitted
    '- Fatal                  ends the broker: nothing may be confirmed any more

They are raised where they are found; `amqp.connection` turns protocol errors into close methods.
"""

from __future__ import annotations

from typing import Final

# AMQP 0-9-1 section 1.2 (constants). The texts that clients see begin with these names.
CODE_NAMES: Final[dict[int, str]] = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}

UNEXPECTED: Final = "unexpected error, see the broker's log"
"""The reply text for a defect of the broker."""

# A reply text is a short string (section 4.2.5.3). RabbitMQ cuts longer ones the same way.
REPLY_TEXT_MAX_BYTES: Final = 255


class BrokerError(Exception):
    """The broker refuses a request, or fails to perform it."""


class ProtocolError(BrokerError):
    """An error with the reply code and text of a close method."""

    def __init__(self, reply_code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        self.reply_code = reply_code
        self.reply_text = shortened(f"{CODE_NAMES[reply_code]} - {text}")
        self.class_id = class_id
        self.method_id = method_id
        super().__init__(self.reply_text)

    def blame(self, class_id: int, method_id: int) -> None:
        """Set the method at fault."""
        self.class_id = class_id
        self.method_id = method_id


class ChannelError(ProtocolError):
    """An error that closes its channel and leaves the connection open."""


class ConnectionFault(ProtocolError):
    """An error that closes the connection."""


class Refused(BrokerError):
    """The refusal of a login.

    `reason` is for the log: the client gets a general text, or none if `told` is False, so that it cannot probe for
    users. `shown`, if not empty, is a text that HTTP clients may see.
    """

    def __init__(self, reason: str, *, told: bool = True, shown: str = "") -> None:
        self.reason = reason
        self.told = told
        self.shown = shown
        super().__init__(reason)


class NotNow(BrokerError):
    """The broker cannot start, but may do so later with the same settings."""


class NodeLost(BrokerError):
    """The node lost its place in the cluster, and has dropped everything uncommitted; it will join again."""


class Fatal(BrokerError):
    """An error that ends the broker: every connection propagates it, and nothing may be confirmed after it."""


def shortened(text: str) -> str:
    """Return the text, cut to the length of a short string, with dots at the end if it was cut."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= REPLY_TEXT_MAX_BYTES:
        return encoded.decode("utf-8")
    return encoded[: REPLY_TEXT_MAX_BYTES - 3].decode("utf-8", "ignore") + "..."


def non_method_frame() -> ConnectionFault:
    """Return the error for a content frame without a publish."""
    return ConnectionFault(505, "expected method frame, got non method frame instead")


def describe_frame(kind: int, payload: bytes) -> str:
    """Return the type and first octets of a frame for a reply text, as RabbitMQ prints them."""
    amount, octets = "all" if len(payload) <= 16 else "first 16", payload[:16]
    if octets and all(32 <= octet < 127 for octet in octets):
        text = octets.decode().replace("\\", "\\\\").replace('"', '\\"')
        return f'type {kind}, {amount} octets = <<"{text}">>'
    return f"type {kind}, {amount} octets = <<{','.join(str(octet) for octet in octets)}>>"


def broken_frame(kind: int, payload: bytes, reason: str) -> ConnectionFault:
    """Return the 501 that describes a frame and the reason why it is invalid."""
    return ConnectionFault(501, f"{describe_frame(kind, payload)}: {reason}")
