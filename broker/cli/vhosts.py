"""`slotmq vhost` and `slotmq policy`: add, limit and delete vhosts; set and delete policies."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from broker.cli.control_client import request
from broker.cli.listing import print_list
from broker.cli.parser import BadUsage, add_any_vhost, add_command, add_group, add_switch, add_value, finish
from broker.cli.users import LIMIT_HELP, add_limits
from broker.core.definitions.json_text import read_json

APPLY_TO = ("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")


def add_vhosts(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(commands, "vhost", "add, limit, delete or list vhosts")
    command = add_command(kinds, "add", "add a vhost; users need a permission to open it", "NAME")
    command.add_argument("--description", metavar="TEXT", default="")
    add_value(command, "--default-queue-type", "TYPE", "classic or quorum: the type of queues declared without one")
    finish(command, request("add_vhost"))
    command = add_command(kinds, "delete", "delete a vhost with everything in it, and close its connections", "NAME")
    finish(command, request("delete_vhost"))
    blocked = "close a connection that an alarm has blocked for N seconds; 0 nacks publishes, -1 lets it wait"
    add_limits(kinds, "vhost", {"connections": LIMIT_HELP, "queues": LIMIT_HELP, "blocked-seconds": blocked})
    command = add_command(kinds, "list", "list the vhosts")
    finish(command, partial(print_list, "vhosts"), json=True)

    kinds = add_group(commands, "policy", "set, delete or list policies")
    command = add_command(kinds, "set", "set rules for all queues and exchanges whose names match a pattern", "NAME")
    add_value(command, "pattern", "PATTERN", "a regular expression")
    add_value(command, "definition", "DEFINITION", 'a JSON object such as {"max-length": 1000}', type=_definition)
    meaning = "the matching policy with the highest priority applies (default 0)"
    add_value(command, "--priority", "N", meaning, type=int, default=0)
    add_value(command, "--apply-to", "KIND", ", ".join(APPLY_TO), choices=APPLY_TO, default="all")
    _finish(command, request("set_policy"))
    command = add_command(kinds, "delete", "delete a policy", "NAME")
    _finish(command, request("delete_policy"))
    command = add_command(kinds, "list", "list the policies")
    add_any_vhost(command)
    add_switch(command, "--operator", "list the operator policies")
    finish(command, lambda given: print_list("operator-policies" if given.operator else "policies", given), json=True)


def _finish(command: argparse.ArgumentParser, run: Any) -> None:
    add_switch(command, "--operator", "an operator policy, which can only lower limits")
    finish(command, run, vhost=True)


def _definition(text: str) -> Any:
    try:
        return read_json(text.encode())
    except ValueError as error:
        raise BadUsage(f"the definition is not valid JSON: {error}") from None
