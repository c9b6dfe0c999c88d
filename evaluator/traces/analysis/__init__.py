"""What traces show beyond single numbers: tables and splits that metrics and views share."""
