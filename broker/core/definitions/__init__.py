"""Definitions: users, vhosts, rights, policies, exchanges, queues and bindings as one JSON document, as RabbitMQ's."""
