"""Random configurations and tensors from a specification and a seed, the same in every process."""
