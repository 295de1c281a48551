"""The edges where asyncio meets sockets."""
