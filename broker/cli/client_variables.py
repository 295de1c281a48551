"""The environment variables of commands and of the build, which are not settings of a broker."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes longer than a health check
if TYPE_CHECKING:
    from typing import Final

URL_VARIABLE: Final = "SLOTMQ_URL"
CA_FILE_VARIABLE: Final = "SLOTMQ_CAFILE"
LOGIN: Final = "SLOTMQ_PASS"  # a password; with the suffix _FILE, this variable and the next two name files
LOGIN_FROM: Final = "SLOTMQ_FROM_PASS"
LOGIN_TO: Final = "SLOTMQ_TO_PASS"
LOGINS: Final = (LOGIN, LOGIN_FROM, LOGIN_TO)
COMPILE_VARIABLE: Final = "SLOTMQ_COMPILE"  # 0 makes pip and make skip the compilation
INTERPRETED_VARIABLE: Final = "SLOTMQ_INTERPRETED"  # why a checkout runs interpreted, for the log
FILES: Final = tuple(f"{login}_FILE" for login in LOGINS)
CLIENT_VARIABLES: Final = frozenset(
    (URL_VARIABLE, CA_FILE_VARIABLE, *LOGINS, *FILES, COMPILE_VARIABLE, INTERPRETED_VARIABLE)
)
