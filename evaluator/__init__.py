"""Measure one configuration: launch it, time it, trace it, score it; knows no policy and no store."""
