"""aiomqtt: `aiomqtt_client.py subscribe|publish|read PORT NAME [COUNT]`; `publish` prints acknowledged numbers."""

import asyncio
import sys
from itertools import count

import aiomqtt

command, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]


async def main() -> None:
    """Run the command."""
    async with aiomqtt.Client(
        "127.0.0.1",
        port,
        username="guest",
        password="guest",
        identifier=f"{name}-{command == 'publish'}",
        protocol=aiomqtt.ProtocolVersion.V311,
        clean_session=False,
    ) as client:
        if command == "subscribe":
            await client.subscribe(name, 1)
        elif command == "publish":
            for number in count(1):
                await client.publish(name, str(number), 1)
                print(number, flush=True)
        else:
            wanted = set(range(1, int(sys.argv[4]) + 1))
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                wanted.discard(int(message.payload))
                if not wanted:
                    return


asyncio.run(main())
