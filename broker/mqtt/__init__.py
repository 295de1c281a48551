"""MQTT 3.1.1 and 5 without I/O: packets, properties, topics, and the conversation with one client."""
