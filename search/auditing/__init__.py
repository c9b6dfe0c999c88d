"""What a recorded history got wrong, as far as its own record shows it."""
