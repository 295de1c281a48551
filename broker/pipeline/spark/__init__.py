"""The base of every job: a Java, a Spark session and Spark's messages."""
