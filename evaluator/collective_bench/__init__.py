"""The collective benchmark from the outside: what is asked, launched, recorded and written down."""
