"""The cost of an overlay: its links, its brokers and its subscriptions."""
