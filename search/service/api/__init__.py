"""The HTTP API of the service, by what its routes are about."""
