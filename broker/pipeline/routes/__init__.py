"""Who would get what: bindings, matched by the broker's own index."""
