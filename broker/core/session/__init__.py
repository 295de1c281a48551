"""Run the methods that clients send on their connections and channels."""
