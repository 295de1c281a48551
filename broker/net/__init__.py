"""Sockets: AMQP clients, TLS, the control socket and HTTP, on asyncio."""
