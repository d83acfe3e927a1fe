"""What people look at: tables, figures for papers, and an HTML page, also while a run goes on.

Everything is made from config.json and history.jsonl.
"""
