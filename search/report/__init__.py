"""The report of a study as a document."""
