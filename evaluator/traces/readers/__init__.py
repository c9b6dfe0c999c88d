"""Trace files in, rank traces out: one reader per format."""
