"""How much memory a configuration takes, from sizes alone."""
