"""Launch on the nodes of a cluster, through agents that its scheduler starts."""
