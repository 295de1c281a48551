"""How a job ends: its exit codes, and the failure that carries one."""

from __future__ import annotations

from typing import Final

__all__ = ["BAD_RECORDS", "ERROR", "GAP", "NO_JAVA", "OK", "USAGE", "JobFailed"]

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
BAD_RECORDS: Final = 3  # done, but for records that nobody can read
GAP: Final = 4  # messages that were to be read are gone
NO_JAVA: Final = 5


class JobFailed(Exception):
    """A job that cannot go on; the text is for the user: one line, or the screen that says which Java would do.

    A subclass has its exit code as `code`, so that one raised in a worker ends the job with it too.
    """

    code = ERROR

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code
