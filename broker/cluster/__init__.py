"""A cluster: brokers that share one PostgreSQL, and the slots of their queues between them."""
