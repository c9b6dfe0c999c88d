"""Takes names of people, machines and places out of records and traces, the same way everywhere."""
