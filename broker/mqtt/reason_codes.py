"""Reason codes of MQTT 5, and the return codes of MQTT 3.1.1.

Source: MQTT 5.0, section 2.4; MQTT 3.1.1, section 3.2.2.3.
"""

from __future__ import annotations

from typing import Final

SUCCESS: Final = 0x00
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION: Final = 0x11
UNSPECIFIED: Final = 0x80
MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION_ERROR: Final = 0x83
VERSION_UNSUPPORTED: Final = 0x84
CLIENT_ID_INVALID: Final = 0x85
BAD_CREDENTIALS: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
TAKEN_OVER: Final = 0x8E
FILTER_INVALID: Final = 0x8F
TOPIC_INVALID: Final = 0x90
PACKET_ID_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98
QOS_UNSUPPORTED: Final = 0x9B

FAILURE_311: Final = 0x80
"""The only code for a refused subscription in a SUBACK of 3.1.1."""
RETURN_CODES_311: Final = {
    SUCCESS: 0,
    VERSION_UNSUPPORTED: 1,
    CLIENT_ID_INVALID: 2,
    SERVER_UNAVAILABLE: 3,
    IMPLEMENTATION_ERROR: 3,
    QOS_UNSUPPORTED: 3,
    BAD_CREDENTIALS: 4,
    NOT_AUTHORIZED: 5,
}
"""The return code in a CONNACK of 3.1.1 for each reason code; for others the connection is closed without a CONNACK."""
