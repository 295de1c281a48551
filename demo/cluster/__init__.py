"""The flights through a cluster: three nodes on one PostgreSQL, one of which is killed and one frozen on the way."""
