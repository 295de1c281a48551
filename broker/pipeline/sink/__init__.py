"""Publish rows as messages: the AMQP publisher and Spark's writers that use it."""
