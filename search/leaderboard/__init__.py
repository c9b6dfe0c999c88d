"""Submissions side by side: the best of studies on record, and entries of others."""
