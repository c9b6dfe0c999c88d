"""Whose doing a failed job was, from everything that it left behind."""
