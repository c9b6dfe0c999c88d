"""What is on record, said in words: for people, and for a model."""
