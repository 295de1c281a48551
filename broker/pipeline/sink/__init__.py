"""Rows as messages: the publisher and Spark's writers over it."""
