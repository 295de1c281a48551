"""Moves queues with their messages from another AMQP broker to this one: a program separate from the daemon."""
