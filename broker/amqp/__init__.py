"""The AMQP 0-9-1 protocol as values. Bytes in, methods and contents out, and back."""
