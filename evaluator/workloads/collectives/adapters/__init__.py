"""One way to call collectives, whatever library carries them out."""
