"""Move the messages of queues from another AMQP broker to SlotMQ: a program separate from the daemon."""
