"""Start jobs and watch them."""
