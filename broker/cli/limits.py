"""`slotmq user set-limits`, `slotmq vhost set-limits` and their `clear-limits`."""

from __future__ import annotations

import argparse
from typing import Any

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask
from broker.cli.parser import BadUsage, add_broker, add_command

__all__ = ["add_limits"]


def add_limits(kinds: Any, owner: str, limited: tuple[str, ...]) -> None:
    """Add the commands for a user or a vhost."""

    def set_limits(arguments: argparse.Namespace) -> int:
        given = {f"max-{one}": getattr(arguments, f"max_{one}") for one in limited}
        limits = {name: value for name, value in given.items() if value is not None}
        if not limits:
            raise BadUsage(f"nothing to change: give {' or '.join(f'--{name}' for name in given)}")
        ask(broker_of(arguments), f"set_{owner}_limits", name=arguments.name, limits=limits)
        return 0

    def clear_limits(arguments: argparse.Namespace) -> int:
        ask(broker_of(arguments), f"clear_{owner}_limits", name=arguments.name)
        return 0

    command = add_command(kinds, "set-limits", f"limit connections and the like of a {owner}; what exists stays")
    command.add_argument("name", metavar="NAME")
    for one in limited:
        command.add_argument(
            f"--max-{one}", metavar="N", type=int, help=f"at most N {one}; 0 allows none, -1 any number"
        )
    add_broker(command)
    command.set_defaults(run=set_limits)
    command = add_command(kinds, "clear-limits", f"remove the limits of a {owner}")
    command.add_argument("name", metavar="NAME")
    add_broker(command)
    command.set_defaults(run=clear_limits)
