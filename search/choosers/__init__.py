"""Offline strategies: each chooses the next configuration from what is on record."""
