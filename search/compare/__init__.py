"""Two measured sides, whatever they are, and the verdict on them."""
