"""Records written for others: tables, entries of a leaderboard, bundles; whole or not at all."""
