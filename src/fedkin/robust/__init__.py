"""Hostile clients: attacks to simulate, defenses of the server, and differential privacy of what clients send."""
