"""The limit on open files and sockets of the process."""

from __future__ import annotations

import sys

from broker.net.descriptors import ENOUGH

__all__ = ["raise_file_limit"]


def raise_file_limit() -> None:
    """Raise the soft limit to the hard one, up to ENOUGH; never lowers it.

    A shell's default of 1,024 exists for select(2). With it the thousandth client or vhost would leave the store
    without a descriptor for its next segment, and a store that cannot write ends the broker.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has a lower limit of its own, which has to do
        pass
