"""Chrome trace JSON as a stream of typed events."""
