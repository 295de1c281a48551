"""Measures the data pipeline against Spark's own Parquet reader and writer."""
