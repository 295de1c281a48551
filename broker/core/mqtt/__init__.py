"""Serve MQTT clients with the exchanges, queues and permissions of a vhost."""
