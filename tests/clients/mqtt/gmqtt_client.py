"""gmqtt: `gmqtt_client.py subscribe|publish|read PORT NAME [COUNT]`; `publish` prints acknowledged numbers."""

import asyncio
import sys
from itertools import count
from typing import Any

import gmqtt  # type: ignore[import-not-found]

command, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]


async def main() -> None:
    """Run the command."""
    done = asyncio.Event()
    wanted = set(range(1, int(sys.argv[4]) + 1)) if command == "read" else set()

    def received(_client: Any, _topic: str, payload: bytes, _qos: int, _properties: Any) -> int:
        wanted.discard(int(payload))
        if not wanted:
            done.set()
        return 0

    client = gmqtt.Client(f"{name}-{command == 'publish'}", clean_session=False, session_expiry_interval=3600)
    client.set_auth_credentials("guest", "guest")
    client.on_message = received
    client.on_subscribe = lambda *_: done.set()
    await client.connect("127.0.0.1", port, version=5)
    if command == "subscribe":
        client.subscribe(name, qos=1)
    elif command == "publish":
        for number in count(1):
            client.publish(name, str(number), qos=1)
            # gmqtt has no other way to await a PUBACK.
            while not client._persistent_storage.is_empty:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            print(number, flush=True)
    await done.wait()
    await client.disconnect()


asyncio.run(main())
