"""The AMQP 0-9-1 protocol without I/O: bytes in, methods and contents out, and the reverse."""
