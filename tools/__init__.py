"""Programs for developers of SlotMQ; neither the package nor its tests need them to run."""
