"""AMQP clients within the process."""
