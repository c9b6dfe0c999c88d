"""One module for each scheduler that can start agents."""
