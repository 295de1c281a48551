"""The flights through an overlay: six brokers, which are killed and come back on the way."""
