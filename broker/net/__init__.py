"""Sockets on asyncio: AMQP clients, TLS and the control socket."""
