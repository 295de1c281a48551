"""Read slots as rows: catalogs, the decoder, and Spark's readers that use them."""
