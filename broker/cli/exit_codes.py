"""The exit codes of all commands; `slotmq pipeline` adds those in `broker.pipeline.faults`.

    0    success; for a broker, a clean stop
    1    refused or failed; a retry may succeed, for example when a port is in use
    2    wrong usage, settings, rights or files, which the user should change before a retry
    130  interrupted

The systemd unit restarts a broker after 1, but not after 2.
"""

from __future__ import annotations

import errno
import os
from typing import Final

FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED_CODE: Final = 130  # 128 + SIGINT, as in shells

# The errors for a wrong path or address, or a missing permission. Any other error may be temporary.
_PERMANENT: Final = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
        *(errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EOPNOTSUPP),
    )
)


def code_of_start(error: BaseException) -> int:
    """Return the exit code for an error that ended a broker, according to the error and its causes."""
    from broker.amqp.errors import Fatal, NotNow

    if isinstance(error, Fatal | NotNow):
        return FAILED
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and _is_temporary(cause):
            return FAILED
        cause = cause.__cause__ or cause.__context__  # in compiled code, `raise ... from` sets only the latter
    return UNUSABLE


def unwritable(path: str | os.PathLike[str], error: OSError) -> Exception:
    """Return the error of a command whose file cannot be written: exit code 1 on a full disk, 2 for a wrong path."""
    from broker.cli.broker_url import Unanswered
    from broker.cli.parser import BadUsage

    reason = error.strerror or str(error) or type(error).__name__
    return (Unanswered if _is_temporary(error) else BadUsage)(f"{path}: cannot be written: {reason}")


def _is_temporary(error: OSError) -> bool:
    import socket
    import ssl

    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    return not isinstance(error, ssl.SSLError) and error.errno is not None and error.errno not in _PERMANENT
