"""What runs a method: it names no method."""
