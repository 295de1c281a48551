"""The demo of the web page: flights through a broker whose page shows them."""
