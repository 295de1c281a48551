"""Raises the limit of open files to the number of sockets that a scenario opens."""

from __future__ import annotations

import sys
from typing import Final

from broker.perf.faults import Fault

SPARE: Final = 32  # for the program's own files, pipes and selector


def make_room(sockets: int) -> None:
    """Raise the soft limit of open files until `sockets` fit, at most to the hard limit.

    Raises: Fault if the hard limit is too low, with the limit that would suffice.
    """
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - Windows has no such module

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
