"""Files that were kept for trials: found, checked, and freed by rule."""
