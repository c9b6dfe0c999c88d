"""The store: journals, the database made from them, and kept files."""
