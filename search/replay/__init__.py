"""A search run again from its records, without a launch and without a request."""
