"""Sessions: the methods of each AMQP class, one file per class."""
