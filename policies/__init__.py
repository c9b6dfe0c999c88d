"""Turn a policy program into a checked configuration; knows nothing of launching or storing."""
