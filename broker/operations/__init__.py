"""The operations that operators request over the control socket and HTTP, and the rows of listed objects."""
