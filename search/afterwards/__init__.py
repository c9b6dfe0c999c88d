"""Metrics of trials on record, computed long after they ran."""
