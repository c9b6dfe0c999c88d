"""Samples of step time and the decisions taken from them."""
