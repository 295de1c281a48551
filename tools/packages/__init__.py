"""The packages that users install, built and used as they do: `python -m tools.packages`."""
