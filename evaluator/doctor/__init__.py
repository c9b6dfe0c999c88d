"""What this machine can do for a search: one probe per function, each giving a finding."""
