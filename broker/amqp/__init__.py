"""The AMQP 0-9-1 protocol as values: bytes in, methods and contents out, and the reverse."""
