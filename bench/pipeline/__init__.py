"""Measures the data pipeline beside Spark's own Parquet reader and writer."""
