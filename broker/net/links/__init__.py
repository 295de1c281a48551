"""Links between the brokers of an overlay: opened, accepted, inside this process."""
