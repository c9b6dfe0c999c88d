"""A running service from outside: a client for Python, and its tools for language models."""
