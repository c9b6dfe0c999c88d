"""Reads what the profiler of XLA and JAX wrote."""
