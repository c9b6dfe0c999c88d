"""Setups of communication libraries as configurations: knobs, rules, environment variables."""
