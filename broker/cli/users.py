"""`slotmq user` and `slotmq permission`: users and their rights."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from getpass import getpass
from typing import Any, Final

from broker.cli.control_client import ask_for, request
from broker.cli.listing import print_list
from broker.cli.parser import BadUsage, add_any_vhost, add_command, add_group, add_list, add_switch, add_value, finish

PASSWORD_MAX_BYTES: Final = 1 << 16
LIMIT_HELP: Final = "at most N {}; 0 allows none, -1 any number"


def add_users(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(commands, "user", "add, change, limit, delete or list users")
    for name, summary in (("add", "add a user, who needs a permission to open a vhost"), ("set", "change a user")):
        command = add_command(kinds, name, summary, "NAME")
        add_switch(command, "--password-stdin", "read the password from standard input instead of asking")
        if name == "set":
            add_switch(command, "--password", "ask for a new password")
            add_switch(command, "--no-tags", "remove all tags")
        add_list(command, "--tag", "T", "administrator, monitoring, ...")
        finish(command, _add if name == "add" else _set)
    command = add_command(kinds, "delete", "delete a user and its permissions, and close its connections", "NAME")
    finish(command, request("delete_user"))
    add_limits(kinds, "user", {"connections": LIMIT_HELP, "channels": LIMIT_HELP})
    command = add_command(kinds, "list", "list the users")
    finish(command, partial(print_list, "users"), json=True)

    kinds = add_group(commands, "permission", "set, delete or list permissions of users in a vhost")
    command = add_command(
        kinds, "set", "set a user's permissions: regular expressions that are searched in names", "USER"
    )
    add_value(command, "configure", "CONFIGURE", "exchanges and queues the user may declare and delete; .* is all")
    add_value(command, "write", "WRITE", "exchanges the user may publish to, and queues to bind")
    add_value(command, "read", "READ", "queues the user may consume from, and exchanges to bind to")
    finish(command, request("set_permission"), vhost=True)
    command = add_command(
        kinds, "set-topic", "set which routing keys a user may use with a topic exchange", "USER", "EXCHANGE"
    )
    add_value(command, "write", "WRITE", "routing keys to publish with")
    add_value(command, "read", "READ", "binding keys to bind with")
    finish(command, request("set_topic_permission"), vhost=True)
    command = add_command(kinds, "delete", "delete a user's permission in a vhost", "USER")
    add_value(command, "--topic", "EXCHANGE", "only the permission for this exchange's routing keys")
    finish(command, _delete_permission, vhost=True)
    command = add_command(kinds, "list", "list permissions")
    add_any_vhost(command)
    add_switch(command, "--topic", "list the permissions for routing keys")
    finish(command, lambda given: print_list("topic-permissions" if given.topic else "permissions", given), json=True)


def add_limits(kinds: Any, owner: str, limited: Mapping[str, str]) -> None:
    """Add the commands that limit a user or a vhost. Shapes: `limited` maps the name of each limit to its help."""

    def set_limits(arguments: argparse.Namespace) -> None:
        given = {f"max-{noun}": getattr(arguments, f"max_{noun}".replace("-", "_")) for noun in limited}
        limits = {name: value for name, value in given.items() if value is not None}
        if not limits:
            raise BadUsage(f"nothing to change: give {' or '.join(f'--{name}' for name in given)}")
        ask_for(arguments, f"set_{owner}_limits", "name", limits=limits)

    command = add_command(
        kinds, "set-limits", f"limit the connections and other objects of a {owner}; existing ones stay", "NAME"
    )
    for noun, meaning in limited.items():
        add_value(command, f"--max-{noun}", "N", meaning.format(noun), type=int)
    finish(command, set_limits)
    command = add_command(kinds, "clear-limits", f"remove the limits of a {owner}", "NAME")
    finish(command, request(f"clear_{owner}_limits"))


def _add(arguments: argparse.Namespace) -> None:
    password = _password(arguments)
    ask_for(arguments, "add_user", "name", password=password, tags=arguments.tag)


def _set(arguments: argparse.Namespace) -> None:
    changes: dict[str, Any] = {}
    if arguments.tag or arguments.no_tags:
        changes["tags"] = [] if arguments.no_tags else arguments.tag
    if arguments.password or arguments.password_stdin:
        changes["password"] = _password(arguments)
    if not changes:
        raise BadUsage("nothing to change: give --password, --password-stdin, --tag or --no-tags")
    ask_for(arguments, "set_user", "name", **changes)


def _password(arguments: argparse.Namespace) -> str:
    """Read a password from standard input or the terminal; process lists would show an argument. Raises: BadUsage."""
    if arguments.password_stdin:
        password = _first_line()
    elif sys.stdin.isatty():
        try:
            password = getpass(f"Password of {arguments.name}: ")
            if getpass("Repeat the password: ") != password:
                raise BadUsage("the passwords differ")
        except EOFError:
            raise BadUsage("no password was given") from None
    else:
        raise BadUsage("no terminal to ask for a password: use --password-stdin")
    if not password:
        raise BadUsage("a password must not be empty")
    return password


def _first_line() -> str:
    line = sys.stdin.buffer.readline(PASSWORD_MAX_BYTES + 1)
    if len(line) > PASSWORD_MAX_BYTES:
        raise BadUsage(f"a password has at most {PASSWORD_MAX_BYTES} bytes")
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadUsage("a password should be UTF-8") from None


def _delete_permission(arguments: argparse.Namespace) -> None:
    of_topics = {} if arguments.topic is None else {"exchange": arguments.topic}
    ask_for(arguments, f"delete_{'topic_' if of_topics else ''}permission", "user", "vhost", **of_topics)
