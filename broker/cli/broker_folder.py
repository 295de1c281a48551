"""The data folder of the broker that a command talks to.

Only this setting is read, from the same layers as `slotmq serve`, so that a command starts in milliseconds and works
with a settings file of another version.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing would cost more than a health check
if TYPE_CHECKING:
    import argparse
    from typing import Any, Final

DEFAULT_FOLDER: Final = "data"  # settings.Server.data_dir
VARIABLE: Final = "SLOTMQ_SERVER__DATA_DIR"


class BadFile(Exception):
    """The settings file cannot be read; the text is one line."""


def folder_of(arguments: argparse.Namespace) -> str:
    """Return the data folder from the flags, the environment or the settings file. Raises: BadFile."""
    return broker_folder(arguments.data_dir, arguments.config)


def broker_folder(flag: str | None, file: os.PathLike[str] | str | None) -> str:
    """Return the data folder. Raises: BadFile."""
    if flag is not None:
        return flag
    environment = {name.upper(): value for name, value in os.environ.items()}
    if VARIABLE in environment:
        return environment[VARIABLE]
    return DEFAULT_FOLDER if file is None else _from_file(file)


def shown(folder: str) -> str:
    """Return a data folder for an error text: absolute, with the flag that names another one."""
    try:
        folder = os.path.abspath(folder)  # noqa: PTH100 - pathlib costs a health check more than its question does
    except OSError:  # the current folder was removed
        pass
    return f"{folder} (another one: --data-dir D)"


def _from_file(file: os.PathLike[str] | str) -> str:
    import tomllib

    try:
        with open(file, "rb") as stream:  # noqa: PTH123 - pathlib costs a health check more than its question does
            content: dict[str, Any] = tomllib.load(stream)
    except OSError as error:
        raise BadFile(f"{os.fspath(file)}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadFile(f"{os.fspath(file)}: not valid TOML: {error}") from None
    server = content.get("server")
    folder = server.get("data_dir", DEFAULT_FOLDER) if isinstance(server, dict) else DEFAULT_FOLDER
    return str(folder)
