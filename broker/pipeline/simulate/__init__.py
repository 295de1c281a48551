"""Simulate overlays of many sizes with the production code of brokers. Each Spark task simulates one overlay."""
