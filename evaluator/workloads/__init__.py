"""Built-in jobs that ranks run: standard library and torch only."""
