"""Routing: from a routing key, or headers, to destinations. Pure; destinations are opaque hashable objects."""
