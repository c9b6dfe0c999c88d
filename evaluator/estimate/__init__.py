"""Estimate a step of a configuration from sizes alone, to rank configurations; never a result.

Every part is proportional to what it stands for; its weight is fitted to measured trials.
"""
