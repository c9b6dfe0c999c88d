"""What traces tell beyond single numbers: tables and splits that metrics and views share."""
