"""Programs for developers of SlotMQ, its tests and benchmarks; the package does not need them to run."""
