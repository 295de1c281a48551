"""The exit codes of jobs, and the failure that carries one."""

from __future__ import annotations

from typing import Final

__all__ = ["BAD_RECORDS", "ERROR", "GAP", "NO_JAVA", "OK", "USAGE", "JobFailed"]

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
BAD_RECORDS: Final = 3  # done, except for unreadable records
GAP: Final = 4  # messages to read are lost
NO_JAVA: Final = 5


class JobFailed(Exception):
    """A job cannot continue; the text is for the user: one line, or the screen that lists the supported Java versions.

    A subclass has its exit code as `code`, so that an exception raised in a worker sets the job's exit code, too.
    """

    code = ERROR

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code
