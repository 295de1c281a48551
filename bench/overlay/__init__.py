"""What an overlay costs: its links, its brokers and its subscriptions."""
