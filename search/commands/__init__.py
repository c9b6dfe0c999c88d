"""The commands of `cclsearch`, one module per noun."""
