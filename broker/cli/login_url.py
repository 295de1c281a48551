"""Passwords for URLs that name a user and no password, so that none need be in the history of the shell."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from broker.cli.parser import BadUsage

__all__ = ["with_password"]


def with_password(url: str, variable: str) -> str:
    """Return a URL that has a password if it has a user.

    The password is that of the URL, of a variable, of the file that the variable with _FILE names, or typed at the
    terminal. Raises: BadUsage.
    """
    parts = urlsplit(url)
    if parts.username is None or parts.password is not None:
        return url
    secret = _password(variable, f"{parts.username}@{parts.hostname}")
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{quote(secret, safe='')}@{host}"))


def _password(variable: str, whose: str) -> str:
    if variable in os.environ:
        return os.environ[variable]
    file = os.environ.get(f"{variable}_FILE")
    if file is not None:
        try:
            return Path(file).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BadUsage(f"{variable}_FILE: {file}: cannot be read: {error}") from None
    if not sys.stdin.isatty():
        raise BadUsage(f"no password for {whose}: set {variable} or {variable}_FILE, or write it into the URL")
    try:
        return getpass.getpass(f"Password for {whose}: ")
    except EOFError:
        raise BadUsage(f"no password for {whose}") from None
