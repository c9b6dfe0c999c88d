"""What-if: a dependency graph of a traced job, and its replay under another machine."""
