"""The data folder of the broker to which a command connects.

Only this setting is read, from the layers that `slotmq serve` uses as well, so that a command starts in milliseconds
and works with a settings file of another version.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing would cost more than a health check
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any, Final

DEFAULT_FOLDER: Final = "data"  # as in `settings.server`
VARIABLE: Final = "SLOTMQ_SERVER__DATA_DIR"
FILE_BYTES_MAX: Final = 1 << 20  # a settings file is read into memory; no file written by hand is larger


class SettingsError(ValueError):
    """The settings, or their file, cannot be used; `problems` contains one line for each problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


def folder_of(arguments: argparse.Namespace) -> str:
    """Return the data folder from flags, the environment, the settings file or the default. Raises: SettingsError."""
    return broker_folder(arguments.data_dir, arguments.config)


def broker_folder(flag: str | None, file: os.PathLike[str] | str | None) -> str:
    """Return the data folder from a flag, the environment, a settings file or the default. Raises: SettingsError."""
    if flag is not None:
        return flag
    environment = {name.upper(): value for name, value in os.environ.items()}
    if VARIABLE in environment:
        return environment[VARIABLE]
    server = None if file is None else read_toml(file).get("server")
    return str(server.get("data_dir", DEFAULT_FOLDER)) if isinstance(server, dict) else DEFAULT_FOLDER


def shown(folder: str) -> str:
    """Return a data folder for an error text: its absolute path, and the flag that selects another one."""
    try:
        folder = os.path.abspath(folder)  # noqa: PTH100 - importing pathlib takes longer than a health check
    except OSError:  # the current folder was removed
        pass
    return f"{folder} (another one: --data-dir D)"


def is_locked(folder: str) -> bool:
    """Return whether a broker has locked a data folder, if the system shows locks.

    An attempt to lock the folder would tell everywhere, but could keep a broker from starting.
    """
    try:
        with open("/proc/locks") as stream:  # noqa: PTH123 - importing pathlib takes longer than a health check
            locks = stream.read()
        files = [os.stat(path) for path in (folder, f"{folder}/lock") if os.path.exists(path)]  # noqa: PTH110, PTH116
    except OSError:
        return False
    return any(f" {os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino} " in locks for file in files)


def read_toml(file: os.PathLike[str] | str) -> dict[str, Any]:
    """Return the tables of a settings file. Raises: SettingsError."""
    import tomllib  # imported on use, so that a broker without a settings file starts sooner

    name = os.fspath(file)
    try:
        with open(file, "rb") as stream:  # noqa: PTH123 - importing pathlib takes longer than a health check
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError([f"{name}: cannot be read: {error.strerror}"]) from None
    if len(content) > FILE_BYTES_MAX:
        raise SettingsError([f"{name}: larger than {FILE_BYTES_MAX} bytes"])
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:
        raise SettingsError([f"{name}: not valid TOML: {error}"]) from None
