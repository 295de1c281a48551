"""Numbers, tables and charts for readers, on the standard library: HTML pages that need neither network nor scripts."""
