"""Traces to look at: where they come from, and what people, programs and pandas see of them."""
