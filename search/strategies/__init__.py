"""Strategies that propose the next configuration without a model."""
