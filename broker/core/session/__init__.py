"""Sessions: what the methods of each AMQP class do, one file per class."""
