"""The address of a data folder's control socket. It imports almost nothing, because health checks run often."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

SOCKET_NAME: Final = "control.sock"
SOCKET_PATH_MAX_BYTES: Final = 103  # sun_path with its NUL: 108 on Linux, 104 on macOS and the BSDs; unix(7)


def socket_address(folder: os.PathLike[str] | str) -> tuple[str, int | None]:
    """Return the address of the folder's socket, and a descriptor that must stay open while the address is used.

    A path that is too long for a socket address is replaced by one through a descriptor of its folder.
    Raises: OSError for a long path if the folder cannot be opened, or the system has no /proc/self/fd.
    """
    path = os.path.join(folder, SOCKET_NAME)  # noqa: PTH118 - importing pathlib costs a health check more than the rest
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX_BYTES:
        return path, None
    if not os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        raise OSError(f"the path {path} is longer than the {SOCKET_PATH_MAX_BYTES} bytes of a socket address")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/self/fd/{descriptor}/{SOCKET_NAME}", descriptor
