"""Reads what the PyTorch profiler wrote."""
