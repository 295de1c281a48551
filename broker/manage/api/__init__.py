"""The API under /api: RabbitMQ's management API, and the routes that SlotMQ adds. Each module is a noun of the API."""
