"""Collectives by themselves: measured one by one, or exchanged as the mix of a training step."""
