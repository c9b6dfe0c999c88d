"""How things are shown: text, tables, charts and documents."""
