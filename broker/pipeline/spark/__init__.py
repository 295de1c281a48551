"""Run jobs on Spark: find a Java, create a session or start a server, run tasks, and log Spark's messages."""
