"""The web page: static files under `web`, and the routes that serve them."""
