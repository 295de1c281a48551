"""The constraint vectors of the paper: tests compare the broker with them, and no broker runs them."""
