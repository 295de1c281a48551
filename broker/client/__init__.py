"""AMQP clients on asyncio and on blocking sockets, as shells around `amqp/client.py`; and the URLs of brokers."""
