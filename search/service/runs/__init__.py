"""Submitted studies: their queue, and the processes that search them."""
