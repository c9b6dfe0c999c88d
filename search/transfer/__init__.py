"""Records from and for elsewhere: import, export, bundles, entries of a leaderboard."""
