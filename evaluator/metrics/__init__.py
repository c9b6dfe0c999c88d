"""Metrics: one module per family, functions of what one trial measured."""
