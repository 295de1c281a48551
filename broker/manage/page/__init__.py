"""The web page: static files in `web`, and the routes that serve them."""
