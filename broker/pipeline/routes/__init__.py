"""Compute which queues messages reach, with the broker's own index of bindings."""
