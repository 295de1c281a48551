"""The queues that messages reach: bindings, matched by the broker's own index."""
