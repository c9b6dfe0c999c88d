"""Charts as SVG to put into a page: plain functions from values to text, without any library."""
