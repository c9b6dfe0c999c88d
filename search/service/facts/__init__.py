"""What is told of studies beyond their rows, made once for each state of the records."""
