"""`slotmq move` and `slotmq requeue-dead-letters`: move messages out of a queue."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from broker.cli.control_client import ask_for
from broker.cli.exit_codes import INTERRUPTED_CODE
from broker.cli.parser import add_command, add_list, add_switch, add_value, finish
from broker.cli.progress_line import ProgressLine, share_of
from broker.cli.table import cell, counted, print_json, warn

INTERRUPTED: Final = "interrupted"
REASONS: Final = ("rejected", "expired", "maxlen", "delivery_limit")


def add_moving(commands: Any) -> None:
    """Add the commands."""
    command = add_command(
        commands,
        "move",
        "move the ready messages of a queue to another queue or to an exchange, each exactly once",
        "QUEUE",
    )
    add_value(
        command,
        "--to",
        "QUEUE|EXCHANGE[:KEY]",
        "the destination; to an exchange each message keeps its routing key unless KEY is given; 'queue:NAME' or "
        "'exchange:NAME[:KEY]' if both exist",
        required=True,
        type=_destination,
    )
    _finish(command, partial(_carry_out, "move", ("to",)))

    command = add_command(
        commands, "requeue-dead-letters", "move dead letters back to the queue that each died in, each exactly once"
    )
    add_value(command, "queue", "QUEUE", "the queue that holds the dead letters")
    command.add_argument(
        "--into", choices=("queue", "exchange"), default="queue",
        help="queue: the queue it died in (default); exchange: publish it with the exchange and key it had there",
    )  # fmt: skip
    meaning = f"only messages that died for this reason: {', '.join(REASONS)}; can be repeated"
    add_list(command, "--reason", "R", meaning, choices=REASONS, dest="reasons")
    add_list(command, "--died-in", "QUEUE", "only messages that died in this queue; can be repeated")
    _finish(command, partial(_carry_out, "requeue_dead_letters", ("into", "reasons", "died_in")))


def _finish(command: argparse.ArgumentParser, run: Any) -> None:
    add_value(command, "--limit", "N", "move at most N messages", type=positive)
    add_list(
        command,
        "--match",
        "CONDITION",
        "only matching messages: key=PATTERN (a topic pattern), exchange=NAME, header:NAME=VALUE, body~TEXT; "
        "if repeated, all must hold",
        type=_condition,
    )
    add_switch(command, "--quiet", "show no progress")
    finish(command, run, json=True, vhost=True)


def _destination(text: str) -> str:
    if not text:  # an unset shell variable, for example, must not mean the default exchange
        raise argparse.ArgumentTypeError("name a queue or an exchange; ':NAME' is the default exchange with that key")
    return text


def positive(text: str) -> int:
    """Parse a number of messages. Raises: ArgumentTypeError."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number of messages")
    return number


def _condition(text: str) -> str:
    from broker.core.moving.condition import condition_of  # other commands do not need this import

    try:
        condition_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _carry_out(verb: str, names: Sequence[str], arguments: argparse.Namespace) -> int:
    with ProgressLine(quiet=arguments.quiet) as line:

        def show(progress: Mapping[str, Any]) -> None:
            line.show(f"{progress['moved']:,} moved, {share_of(progress['looked'], progress['total'])} checked")

        names = ("queue", "vhost", "limit", "match", *names)
        answer = ask_for(arguments, verb, *names, on_progress=show, interruptible=True)
    if arguments.json:
        print_json(answer)
    else:
        unmatched = f", {answer['unwanted']} not chosen" if answer["unwanted"] else ""
        print(f"{counted(answer['moved'], 'messages')} moved{destination_text(answer['to'])}{unmatched}")
    for problem in _problems(answer):
        warn(problem)
    if answer["stopped"] == INTERRUPTED:
        return INTERRUPTED_CODE
    return 1 if answer["stopped"] or answer["unroutable"] or answer["refused"] else 0


def destination_text(to: Mapping[str, str]) -> str:
    """Return the destination as the end of a sentence."""
    if "queue" in to:
        return f" to queue '{cell(to['queue'])}'"
    if "exchange" in to:
        key = f", key '{cell(to['routing_key'])}'" if "routing_key" in to else ""
        return f" to exchange '{cell(to['exchange'])}'{key}"
    return f" back to the {to['death']}s they came from" if to["death"] == "exchange" else " back to where they died"


def _problems(answer: Mapping[str, Any]) -> list[str]:
    """Return the reasons why messages were not moved."""
    problems = []
    if answer["stopped"]:
        problems.append(f"stopped before the end: {answer['stopped']}; {counted(answer['left'], 'messages')} left")
    if answer["unroutable"]:
        to_queues = answer["to"].get("death") == "queue"
        reason = "the queue where they died does not exist" if to_queues else "no queue is bound there"
        problems.append(f"{counted(answer['unroutable'], 'messages')} left in place: {reason}")
    if answer["refused"] and not answer["stopped"]:
        problems.append(f"{counted(answer['refused'], 'messages')} left in place: a queue of the route is full")
    return problems
