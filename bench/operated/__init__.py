"""What it costs to operate a broker: metrics scraped each second, and the web page open."""
