"""What a run leaves behind: history, summary, comparison, citation, and files on disk."""
