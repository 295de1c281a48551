"""MQTT 3.1.1 and 5 as values: packets, properties, topics, and the conversation of one client."""
