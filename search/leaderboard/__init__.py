"""Submissions side by side: the best of stored studies, and entries of others."""
