"""The commands of `cclsearch`, one module per group."""
