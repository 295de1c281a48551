"""Sockets: AMQP clients, TLS and the control socket, on asyncio."""
