"""What jobs on Spark build on: a Java, a Spark session or server, tasks, and the log of Spark's messages."""
