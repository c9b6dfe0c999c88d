"""The loop and its faces: proposers, prompt, LLM client, command line."""
