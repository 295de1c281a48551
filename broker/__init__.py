"""SlotMQ: a message broker for AMQP 0-9-1 and MQTT."""

__version__ = "0.2.0.dev0"
