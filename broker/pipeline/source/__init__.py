"""Slots as rows: catalogs, the decoder, and Spark's readers over them."""
