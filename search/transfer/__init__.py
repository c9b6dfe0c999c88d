"""Import and export of studies: bundles, CCL-Bench entries, tables."""
