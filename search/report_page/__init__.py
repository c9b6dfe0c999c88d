"""The report of a study: what it says as values, and those as one HTML file or as Markdown."""
