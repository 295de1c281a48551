"""SlotMQ: an AMQP 0-9-1 topic broker."""

__version__ = "0.1.0.dev0"
