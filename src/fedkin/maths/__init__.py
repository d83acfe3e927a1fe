"""Pure functions on arrays. Nothing here knows of clients, networks or engines."""
