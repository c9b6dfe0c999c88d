"""Talking to a language model."""
