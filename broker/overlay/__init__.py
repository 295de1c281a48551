"""The overlay: brokers in a tree that forward a message only where it is wanted. Pure; time is passed in."""
