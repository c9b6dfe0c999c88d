"""The faces of the collective benchmark."""
