"""Histories that other tools, or this one elsewhere, wrote: read as studies of ours."""
