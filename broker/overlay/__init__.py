"""The overlay: brokers in a tree that forward a message only where somebody wants it. Pure; time is passed in."""
