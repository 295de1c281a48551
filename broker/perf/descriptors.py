"""Makes room for as many sockets as a scenario opens."""

from __future__ import annotations

import sys
from typing import Final

from broker.perf.faults import Fault

SPARE: Final = 32  # the program's own: files, pipes, the selector


def make_room(sockets: int) -> None:
    """Raise the soft limit of open files so far that so many sockets fit, at most to the hard limit.

    Raises: Fault where that does not suffice, with what would.
    """
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - there is none on Windows

    wanted = sockets + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Fault(
            f"{sockets:,} connections need {wanted:,} open files, and this process may have {hard:,}: "
            "raise the hard limit (ulimit -Hn, or LimitNOFILE=), or ask for fewer"
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        raise Fault(
            f"{sockets:,} connections need {wanted:,} open files, of which there are {soft:,}: {error}"
        ) from None
