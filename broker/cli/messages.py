"""`slotmq publish` and `slotmq get`: publish messages to the running broker, or fetch them from a queue."""

from __future__ import annotations

import argparse
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from broker.cli.control_client import ask_for, first_interrupt
from broker.cli.exit_codes import INTERRUPTED_CODE
from broker.cli.moving import destination_text
from broker.cli.parser import BadUsage, add_command, add_switch, add_table, add_value, finish, name_and_text
from broker.cli.progress_line import ProgressLine
from broker.cli.table import cell, counted, print_json, warn

PROPERTIES: Final = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "timestamp", "type", "user_id", "app_id",
)  # fmt: skip
NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
BODY_MAX_BYTES: Final = 32 << 20  # a body is sent in one request, as base64
BATCH_MESSAGES: Final = 1000
BATCH_BYTES: Final = 4 << 20
GET_MAX: Final = 1000


def add_messages(commands: Any) -> None:
    """Add the commands."""
    command = add_command(commands, "publish", "publish a message, or one per line; with exit code 0 it is on disk")
    add_value(
        command, "to", "QUEUE|EXCHANGE[:KEY]", "the destination; 'queue:NAME' or 'exchange:NAME[:KEY]' if both exist"
    )
    add_value(command, "body", "BODY", "default: standard input", nargs="?")
    add_value(command, "--file", "FILE", "read the body from a file; - is standard input")
    add_switch(command, "--lines", "each line of the file or of standard input is a message")
    meaning = f"{', '.join(PROPERTIES)}; delivery_mode defaults to 2 (persistent)"
    add_table(command, "--property", meaning, _property)
    add_table(command, "--header", "the value is JSON if it parses, else text; can be repeated")
    add_switch(command, "--quiet", "show no progress")
    finish(command, _publish, json=True, vhost=True)

    command = add_command(commands, "get", "remove the next messages from a queue and print them", "QUEUE")
    add_value(command, "--count", "N", f"at most N messages, up to {GET_MAX}", type=message_count, default=1)
    add_switch(command, "--requeue", "return them to the queue, marked redelivered; `peek` does not mark them")
    add_switch(command, "--body", "print only the bodies, unchanged; with --count each is followed by a line break")
    finish(command, _get, json=True, vhost=True)


def message_count(text: str) -> int:
    """Parse a number of messages or topics, at most GET_MAX. Raises: ArgumentTypeError."""
    if text.isdecimal() and 1 <= int(text) <= GET_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 to {GET_MAX}")


def _property(text: str) -> tuple[str, Any]:
    name, value = name_and_text(text)
    if name not in PROPERTIES:
        raise argparse.ArgumentTypeError(f"there is no property '{name}': there are {', '.join(PROPERTIES)}")
    if name in NUMBERS:
        if not value.isdecimal():
            raise argparse.ArgumentTypeError(f"{name} should be a number, not '{value}'")
        if name == "delivery_mode" and int(value) not in (1, 2):
            raise argparse.ArgumentTypeError(f"delivery_mode is 1 or 2, not {value}")
        return name, int(value)
    return "message_type" if name == "type" else name, value


# -- publish ----------------------------------------------------------------------------------------------------------


def _publish(arguments: argparse.Namespace) -> int:
    if arguments.body is not None and (arguments.file is not None or arguments.lines):
        raise BadUsage("give either a BODY, or --file or --lines")
    properties = _properties(arguments)
    total = {"published": 0, "unroutable": 0, "refused": 0}
    stops: list[bool] = []
    to: Mapping[str, str] = {}
    with ProgressLine(quiet=arguments.quiet) as line:
        try:
            for bodies in _batches(arguments):
                with first_interrupt(lambda: stops.append(True)):  # so that the sent batch is counted
                    encoded = [b64encode(body).decode() for body in bodies]
                    answer = ask_for(arguments, "publish", "to", "vhost", properties=properties, bodies=encoded)
                to = answer["to"]
                for name in total:
                    total[name] += answer[name]
                line.show(f"{total['published']:,} published")
                if stops:
                    break
        except KeyboardInterrupt:
            stops.append(True)
    if arguments.json:
        print_json({**total, "to": to})
    else:
        print(f"{counted(total['published'], 'messages')} published{destination_text(to) if to else ''}")
    for name, reason in (("unroutable", "no queue is bound there"), ("refused", "a queue of the route is full")):
        if total[name]:
            warn(f"{counted(total[name], 'messages')} not published: {reason}")
    if stops:
        return INTERRUPTED_CODE
    return 1 if total["unroutable"] or total["refused"] else 0


def _properties(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the properties of each message. Raises: BadUsage for properties that the broker would refuse."""
    from broker.amqp.content_header import facts_of  # other commands do not need these imports
    from broker.amqp.header_edit import encode_header

    properties = {"delivery_mode": 2, **arguments.property}
    if arguments.header:
        properties["headers"] = arguments.header
    try:
        fault = facts_of(encode_header(properties, 0)).fault
    except ValueError as error:
        fault = str(error)
    if fault is not None:
        raise BadUsage(fault)
    return properties


def _batches(arguments: argparse.Namespace) -> Iterator[list[bytes]]:
    """Yield the bodies in batches that fit into one request. Raises: BadUsage."""
    if arguments.body is not None:
        yield [arguments.body.encode("utf-8", "surrogateescape")]
        return
    with _opened(arguments.file) as stream:
        if not arguments.lines:
            yield [_checked(stream.read(BODY_MAX_BYTES + 1))]
            return
        batch: list[bytes] = []
        size_bytes = 0
        while body := stream.readline(BODY_MAX_BYTES + 2):
            batch.append(_checked(body.removesuffix(b"\n").removesuffix(b"\r")))
            size_bytes += len(body)
            if len(batch) >= BATCH_MESSAGES or size_bytes >= BATCH_BYTES:
                yield batch
                batch, size_bytes = [], 0
        if batch:
            yield batch


def _opened(file: str | None) -> IO[bytes]:
    if file is not None and file != "-":
        try:
            return Path(file).open("rb")
        except OSError as error:
            raise BadUsage(f"{file}: cannot be read: {error.strerror}") from None
    if sys.stdin.isatty():
        print("slotmq: reading the body from the keyboard; Ctrl-D ends it", file=sys.stderr)
    return sys.stdin.buffer


def _checked(body: bytes) -> bytes:
    if len(body) > BODY_MAX_BYTES:
        raise BadUsage(f"a body has at most {BODY_MAX_BYTES >> 20} MiB here; clients can publish larger ones")
    return body


# -- get --------------------------------------------------------------------------------------------------------------


def _get(arguments: argparse.Namespace) -> None:
    def show(progress: Mapping[str, Any]) -> None:
        messages = progress["messages"]
        if arguments.json:
            print_json(messages)
        elif arguments.body:
            end = b"\n" if arguments.count > 1 or sys.stdout.isatty() else b""
            sys.stdout.flush()
            for message in messages:
                sys.stdout.buffer.write(_octets(message) + end)
        elif messages:
            print_messages(messages)
        else:
            warn(f"queue '{arguments.queue}' has no message ready")
        sys.stdout.flush()  # before the broker settles the messages

    ask_for(arguments, "get", "queue", "vhost", "count", "requeue", on_progress=show, accepts=True)


def _octets(message: Mapping[str, Any]) -> bytes:
    body: str = message["body"]
    return b64decode(body) if message["body_encoding"] == "base64" else body.encode()


def print_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Print messages as readable lines."""
    if messages:
        print("\n\n".join("\n".join(_lines(message)) for message in messages))


def _lines(message: Mapping[str, Any]) -> list[str]:
    lines = [f"message {message['id']}{', redelivered' if message['redelivered'] else ''}"]
    lines += [f"  {name}: {cell(message[name])}" for name in ("exchange", "routing_key")]
    lines += [f"  {name}: {cell(value)}" for name, value in message["properties"].items()]
    return lines + body_lines(message)


def body_lines(message: Mapping[str, Any]) -> list[str]:
    """Return the body of a message as readable lines."""
    cut = "" if message["body_complete"] else ", cut"
    head = f"  body ({counted(message['body_bytes'], 'bytes')}, {message['body_encoding']}{cut}):"
    return [head, *[f"    {cell(line)}" for line in message["body"].split("\n")]]
