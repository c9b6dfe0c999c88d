"""What runs inside every rank of a job: standard library and torch only."""
