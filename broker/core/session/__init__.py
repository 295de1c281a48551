"""What each AMQP class means: one file per class, behind the connection and channel machines of the amqp package."""
