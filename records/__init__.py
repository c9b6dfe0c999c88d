"""The vocabulary of a search and where it is kept; knows nothing of launching, policies or LLMs."""
