"""Which queues a message reaches: bindings, matched by the broker's own index."""
