"""Pure functions on arrays that several methods share. They do not depend on clients, networks or engines."""
