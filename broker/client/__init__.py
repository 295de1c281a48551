"""AMQP clients on asyncio and on blocking sockets, both around `amqp/client.py`; and the URLs of brokers."""
