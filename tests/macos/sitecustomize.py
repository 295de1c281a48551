"""Makes Linux look like macOS to each Python started with this folder on PYTHONPATH.

It removes the APIs that macOS lacks and adds F_FULLFSYNC. It cannot show the file systems, kqueue and limits of macOS.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import select
import selectors
import signal
import socket
import sys
import sysconfig
import time
from types import ModuleType
from typing import Any, Final

F_FULLFSYNC: Final = 51
HIDDEN: Final = re.compile("/(proc|sys)(/|$)")
LINUX: Final[dict[ModuleType, str]] = {
    os: "fdatasync|posix_fadvise|posix_fallocate|POSIX_FADV_.*|O_(DIRECT|TMPFILE|PATH|NOATIME|LARGEFILE|RSYNC)|RWF_.*|"
    "pidfd_open|PIDFD_.*|P_PIDFD|sched_(get|set).*|sched_param|SCHED_(BATCH|IDLE|RESET.*)|eventfd.*|EFD_.*|timerfd_.*|"
    "TFD_.*|memfd_create|MFD_.*|copy_file_range|splice|SPLICE_.*|getrandom|GRND_.*|pipe2|setns|unshare|CLONE_.*|"
    "[gs]etres[ug]id|.*xattr|XATTR_.*",
    socket: "SO_(PEERCRED|PASSCRED|INCOMING_CPU|BINDTODEVICE|PRIORITY|MARK|DOMAIN|PROTOCOL|PASSSEC|PEERSEC|BUSY_POLL)|"
    "TCP_(QUICKACK|USER_TIMEOUT|INFO|WINDOW_CLAMP|KEEPIDLE|CONGESTION|CORK|DEFER_ACCEPT|LINGER2|SYNCNT)|"
    "SOCK_(CLOEXEC|NONBLOCK)|MSG_(NOSIGNAL|CMSG_CLOEXEC|MORE|ERRQUEUE|CONFIRM|FASTOPEN)|AF_(ALG|CAN|NETLINK|PACKET|"
    "QIPCRTR|RDS|TIPC|VSOCK|BLUETOOTH)|(ALG|CAN|NETLINK|PACKET|TIPC|VMADDR|SO_VM_SOCKETS|UDPLITE)_.*",
    fcntl: "F_(SETPIPE_SZ|GETPIPE_SZ|OFD_.*|ADD_SEALS|GET_SEALS|SEAL_.*|NOTIFY|(GET|SET)(SIG|LEASE))|DN_.*",
    select: "epoll|EPOLL.*",
    selectors: "EpollSelector",
    signal: "SIG(PWR|STKFLT|CLD|POLL|RTMIN|RTMAX)|sigwaitinfo|sigtimedwait|pidfd_send_signal",
    resource: "prlimit|RUSAGE_THREAD|RLIMIT_(MSGQUEUE|NICE|RTPRIO|RTTIME|SIGPENDING|OFILE)",
    time: "CLOCK_(BOOTTIME|TAI)|pthread_getcpuclockid",
}

_fcntl, _stat = fcntl.fcntl, os.stat


def _full_fcntl(descriptor: Any, command: int, argument: Any = 0) -> Any:
    if command == F_FULLFSYNC:
        os.fsync(descriptor)
        return 0
    return _fcntl(descriptor, command, argument)


def _visible_stat(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
    _refuse(path)
    return _stat(path, *arguments, **named)


def _refuse(path: Any) -> None:
    """Raise FileNotFoundError for a file that only Linux has."""
    if isinstance(path, str | bytes | os.PathLike) and HIDDEN.match(os.fsdecode(path)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        _refuse(arguments[0])


def _become_macos() -> None:
    os.environ["_PYTHON_SYSCONFIGDATA_NAME"] = sysconfig._get_sysconfigdata_name()  # type: ignore[attr-defined]
    for module, names in LINUX.items():
        for name in [name for name in vars(module) if re.fullmatch(names, name)]:
            delattr(module, name)
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
    fcntl.F_FULLFSYNC, fcntl.fcntl = F_FULLFSYNC, _full_fcntl  # type: ignore[attr-defined]
    os.stat = _visible_stat
    if sys.version_info >= (3, 13):
        os.process_cpu_count = os.cpu_count  # as in Python without sched_getaffinity
    proxies = ModuleType("_scproxy")  # urllib.request asks macOS for proxies
    proxies._get_proxies = proxies._get_proxy_settings = dict  # type: ignore[attr-defined]
    sys.modules["_scproxy"] = proxies
    sys.addaudithook(_audit)
    sys.platform = "darwin"


_become_macos()
