"""SlotMQ: an AMQP 0-9-1 topic broker."""

__version__ = "0.2.0.dev0"
