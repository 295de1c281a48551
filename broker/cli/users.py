"""`slotmq user` and `slotmq permission`: users and their rights."""

from __future__ import annotations

import argparse
import sys
from getpass import getpass
from typing import Any, Final

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask
from broker.cli.limits import add_limits
from broker.cli.listing import print_list
from broker.cli.parser import BadUsage, add_broker, add_command, add_group, add_json, add_vhost

__all__ = ["add_users"]

PASSWORD_MAX_BYTES: Final = 1 << 16


def add_users(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(commands, "user", "add, change, limit, delete or list users")
    for name, summary in (("add", "add a user, who needs a permission to open a vhost"), ("set", "change a user")):
        command = add_command(kinds, name, summary)
        command.add_argument("name", metavar="NAME")
        command.add_argument(
            "--password-stdin", action="store_true", help="read the password from standard input instead of asking"
        )
        if name == "set":
            command.add_argument("--password", action="store_true", help="ask for a new password")
            command.add_argument("--no-tags", action="store_true", help="remove all tags")
        command.add_argument("--tag", metavar="T", action="append", default=[], help="administrator, monitoring, ...")
        add_broker(command)
        command.set_defaults(run=_add if name == "add" else _set)
    command = add_command(kinds, "delete", "delete a user, with its permissions and its connections")
    command.add_argument("name", metavar="NAME")
    add_broker(command)
    command.set_defaults(run=_delete)
    add_limits(kinds, "user", ("connections", "channels"))
    command = add_command(kinds, "list", "list the users")
    add_json(command)
    add_broker(command)
    command.set_defaults(run=lambda arguments: print_list(arguments, "users"))

    kinds = add_group(commands, "permission", "set, delete or list permissions of users in a vhost")
    command = add_command(kinds, "set", "set what a user may do, as regular expressions that are searched in names")
    command.add_argument("user", metavar="USER")
    command.add_argument(
        "configure", metavar="CONFIGURE", help="exchanges and queues the user may declare and delete; .* is all"
    )
    command.add_argument("write", metavar="WRITE", help="exchanges the user may publish to, and queues to bind")
    command.add_argument("read", metavar="READ", help="queues the user may consume from, and exchanges to bind to")
    _finish(command, _set_permission)
    command = add_command(kinds, "set-topic", "set which routing keys a user may use with a topic exchange")
    command.add_argument("user", metavar="USER")
    command.add_argument("exchange", metavar="EXCHANGE")
    command.add_argument("write", metavar="WRITE", help="routing keys to publish with")
    command.add_argument("read", metavar="READ", help="binding keys to bind with")
    _finish(command, _set_topic_permission)
    command = add_command(kinds, "delete", "delete a user's permission in a vhost")
    command.add_argument("user", metavar="USER")
    command.add_argument("--topic", metavar="EXCHANGE", help="only the permission for this exchange's routing keys")
    _finish(command, _delete_permission)
    command = add_command(kinds, "list", "list permissions")
    command.add_argument("--vhost", metavar="V", help="only this vhost; default all")
    command.add_argument("--topic", action="store_true", help="list the permissions for routing keys")
    add_json(command)
    add_broker(command)
    command.set_defaults(run=_list_permissions)


def _finish(command: argparse.ArgumentParser, run: Any) -> None:
    add_vhost(command)
    add_broker(command)
    command.set_defaults(run=run)


def _add(arguments: argparse.Namespace) -> int:
    password = _password(arguments)
    ask(broker_of(arguments), "add_user", name=arguments.name, password=password, tags=arguments.tag)
    return 0


def _set(arguments: argparse.Namespace) -> int:
    changes: dict[str, Any] = {}
    if arguments.tag or arguments.no_tags:
        changes["tags"] = [] if arguments.no_tags else arguments.tag
    if arguments.password or arguments.password_stdin:
        changes["password"] = _password(arguments)
    if not changes:
        raise BadUsage("nothing to change: give --password, --password-stdin, --tag or --no-tags")
    ask(broker_of(arguments), "set_user", name=arguments.name, **changes)
    return 0


def _password(arguments: argparse.Namespace) -> str:
    """Return a password that no process list shows. Raises: BadUsage."""
    if arguments.password_stdin:
        password = _first_line()
    elif sys.stdin.isatty():
        try:
            password = getpass(f"Password of {arguments.name}: ")
            if getpass("The same again: ") != password:
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


def _delete(arguments: argparse.Namespace) -> int:
    ask(broker_of(arguments), "delete_user", name=arguments.name)
    return 0


def _set_permission(arguments: argparse.Namespace) -> int:
    kinds = {"configure": arguments.configure, "write": arguments.write, "read": arguments.read}
    ask(broker_of(arguments), "set_permission", user=arguments.user, vhost=arguments.vhost, **kinds)
    return 0


def _set_topic_permission(arguments: argparse.Namespace) -> int:
    kinds = {"exchange": arguments.exchange, "write": arguments.write, "read": arguments.read}
    ask(broker_of(arguments), "set_topic_permission", user=arguments.user, vhost=arguments.vhost, **kinds)
    return 0


def _delete_permission(arguments: argparse.Namespace) -> int:
    named = {"user": arguments.user, "vhost": arguments.vhost}
    if arguments.topic is not None:
        ask(broker_of(arguments), "delete_topic_permission", exchange=arguments.topic, **named)
    else:
        ask(broker_of(arguments), "delete_permission", **named)
    return 0


def _list_permissions(arguments: argparse.Namespace) -> int:
    kind = "topic-permissions" if arguments.topic else "permissions"
    return print_list(arguments, kind, vhost=arguments.vhost)
