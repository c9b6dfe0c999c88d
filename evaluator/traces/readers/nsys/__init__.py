"""Reads what Nsight Systems exported."""
