"""What every job builds on: a Java, a Spark session and the log of Spark's messages."""
