"""The variables that commands read, which are not settings of a broker."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs a health check more than its question does
if TYPE_CHECKING:
    from typing import Final

URL_VARIABLE: Final = "SLOTMQ_URL"
CA_FILE_VARIABLE: Final = "SLOTMQ_CAFILE"
LOGIN: Final = "SLOTMQ_PASS"  # the password; this and the next two: also with _FILE, which names a file that has it
LOGIN_FROM: Final = "SLOTMQ_FROM_PASS"
LOGIN_TO: Final = "SLOTMQ_TO_PASS"
LOGINS: Final = (LOGIN, LOGIN_FROM, LOGIN_TO)
COMPILE_VARIABLE: Final = "SLOTMQ_COMPILE"  # 0 leaves out the compilation, for pip and make
INTERPRETED_VARIABLE: Final = "SLOTMQ_INTERPRETED"  # why a checkout runs interpreted: the broker logs it
CLIENT_VARIABLES: Final = frozenset(
    (
        URL_VARIABLE,
        CA_FILE_VARIABLE,
        *LOGINS,
        *(f"{one}_FILE" for one in LOGINS),
        COMPILE_VARIABLE,
        INTERPRETED_VARIABLE,
    )
)
