"""The API under /api, by noun: RabbitMQ's management API and what SlotMQ has beside it."""
