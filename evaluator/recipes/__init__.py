"""From a configuration to a job, one module per framework."""
