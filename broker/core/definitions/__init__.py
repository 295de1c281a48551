"""Definitions: the configuration of a broker or a vhost as one JSON document, in RabbitMQ's format."""
