"""A Java, a session and what Spark says: what every job stands on."""
