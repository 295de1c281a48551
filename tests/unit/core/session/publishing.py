"""Publishes with properties as a Client of `room`, and reads the answers."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from broker.amqp.codec import Method
from tests.raw_client import publish_frames
from tests.unit.core.room import Client, Room, describe

Properties = commands.Basic.Properties


def publish(
    client: Client, key: str, body: bytes = b"body", *, exchange: str = "", mandatory: bool = False, **properties: Any
) -> list[str]:
    """Publish on channel 1 and return the answers, each in the form of `describe`."""
    frames = publish_frames(1, exchange, key, body, properties=Properties(**properties), mandatory=mandatory)
    client.machine.feed(frames)
    return [describe(method) for _, method in client.replies()]


def declare(client: Client, *names: str, **arguments: Any) -> None:
    """Declare durable queues; underscores in argument names stand for hyphens."""
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    for name in names:
        client.call(
            1, commands.Queue.Declare(queue=name, durable=True, arguments=table or None), commands.Queue.DeclareOk
        )


def ready(room: Room, *names: str) -> list[int]:
    """Return the number of ready messages of each queue."""
    return [room.vhost.queues[name].ready for name in names]


def confirms(client: Client) -> list[str]:
    """Return the acks and nacks in the output as text, with `+` after a multiple one."""
    return [confirm_text(method) for _, method in client.replies()]


def confirm_text(method: Method) -> str:
    """Return an ack or nack as `name tag`, with `+` if multiple, and anything else in the form of `describe`."""
    if isinstance(method, commands.Basic.Ack | commands.Basic.Nack):
        return f"{method.name.partition('.')[2].lower()} {method.delivery_tag}{'+' if method.multiple else ''}"
    return describe(method)
