"""AMQP clients: the shells around `amqp/client.py`, for asyncio and for blocking sockets, and the URLs of brokers."""
