"""The collective benchmark: running it, and what its results say."""
