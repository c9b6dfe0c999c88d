"""Measure one configuration: launch, time, trace and score it; knows no policy and no store."""
