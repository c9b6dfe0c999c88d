"""The service: studies submitted, watched and explored over HTTP and in a browser."""
