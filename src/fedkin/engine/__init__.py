"""Runs any method on any federation. See docs/architecture.md for a walk through it."""
