"""Web pages of the service: the API's answers, said to people."""
