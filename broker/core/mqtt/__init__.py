"""MQTT clients on the exchanges, queues and rights of a vhost."""
