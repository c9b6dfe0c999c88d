"""What a user writes: study files, cards, search spaces."""
