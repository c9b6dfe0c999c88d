"""What a profiler saw, whatever the format of its file: one columnar model for all readers."""
