"""How many trials search strategies need, on landscapes whose every point is known."""
