"""Result files of nvbench: reading them, pairing what belongs together, and comparing it."""
