"""A cluster: brokers that share the slots of their queues through one PostgreSQL database."""
