"""The exchanges, queues and bindings of a vhost: declare, delete, journal and restore them."""
