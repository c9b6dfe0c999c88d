"""Repeat recorded studies: the search, its launches, decisions or scores."""
