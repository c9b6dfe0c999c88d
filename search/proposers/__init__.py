"""Sources of the next policy."""
