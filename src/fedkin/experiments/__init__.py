"""The papers' tables and figures, and our own leaderboard: declarations, runs, outcomes."""
