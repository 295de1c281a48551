"""The ØMQ bridge: programs with PUB and SUB sockets exchange messages with the broker's exchanges."""
