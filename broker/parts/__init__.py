"""The parts of a broker: how each is opened, started, stopped and closed."""
