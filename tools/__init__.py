"""Programs for those who work on SlotMQ; neither the package nor its tests need them to run."""
