"""Format numbers, and write tables and charts as HTML or SVG that needs neither network nor scripts."""
