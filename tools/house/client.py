"""An AMQP client in the broker's own loop: it sends the methods of a path and waits for the answers."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from pamqp import body, commands, frame, header

FRAME_HEAD = struct.Struct(">BHI")
METHOD = 1


class Client:
    """One connection with channel 1 open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, *, confirms: bool) -> Self:
        """Return a client that is logged in as guest."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client._writer.write(b"AMQP\x00\x00\x09\x01")
        await client.expect(commands.Connection.Start)
        client.send(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
        await client.expect(commands.Connection.Tune)
        client.send(0, commands.Connection.TuneOk(channel_max=1, frame_max=1 << 17), commands.Connection.Open("/"))
        await client.expect(commands.Connection.OpenOk)
        await client.call(commands.Channel.Open(), commands.Channel.OpenOk)
        if confirms:
            await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        return client

    def send(self, channel: int, *methods: Any) -> None:
        self._writer.write(b"".join(frame.marshal(method, channel) for method in methods))

    def publish(self, exchange: str, key: str, payload: bytes) -> None:
        """Send one persistent message."""
        properties = commands.Basic.Properties(delivery_mode=2)
        content = header.ContentHeader(body_size=len(payload), properties=properties)
        self.send(1, commands.Basic.Publish(exchange=exchange, routing_key=key), content, body.ContentBody(payload))

    async def expect(self, kind: type[Any]) -> Any:
        """Return the next method, which must be a `kind`."""
        frame_type, payload = await self._frame()
        method = frame.unmarshal(payload)[2]
        assert frame_type == METHOD and isinstance(method, kind), f"{method!r} instead of {kind.__name__}"
        return method

    async def expect_delivery(self) -> int:
        """Return the delivery tag of the next message, after reading the whole message."""
        deliver = await self.expect(commands.Basic.Deliver)
        await self._frame()
        await self._frame()
        return int(deliver.delivery_tag)

    async def _frame(self) -> tuple[int, bytes]:
        head = await self._reader.readexactly(FRAME_HEAD.size)
        kind, _channel, size_bytes = FRAME_HEAD.unpack(head)
        return kind, head + await self._reader.readexactly(size_bytes + 1)

    async def call(self, method: Any, reply: type[Any]) -> Any:
        """Send one method on channel 1 and return its reply."""
        self.send(1, method)
        return await self.expect(reply)

    async def close(self) -> None:
        """Close the connection with its closing handshake."""
        self.send(0, commands.Connection.Close(200, "", 0, 0))
        await self.expect(commands.Connection.CloseOk)
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def ask(folder: Path, requests: Iterable[dict[str, Any]]) -> None:
    """Send requests to a broker's control socket, one after the other."""
    reader, writer = await asyncio.open_unix_connection(folder / "control.sock")
    for request in requests:
        writer.write(json.dumps(request).encode() + b"\n")
        while "ok" not in (answer := json.loads(await reader.readline())):
            pass
        assert answer["ok"], answer
    writer.close()
    await writer.wait_closed()
