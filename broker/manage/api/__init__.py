"""The API under /api, by noun: RabbitMQ's management API and the routes that SlotMQ adds."""
