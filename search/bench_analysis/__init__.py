"""Analyses results of collective benchmarks: summaries, verdicts against a baseline, plots."""
