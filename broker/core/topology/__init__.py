"""Exchanges, queues and bindings of a vhost: declared, deleted, journalled and restored."""
