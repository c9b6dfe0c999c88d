"""Who calls: tokens and roles, signed-in browsers, how often each may come."""
