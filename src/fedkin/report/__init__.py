"""What people look at: tables, figures for papers, and an HTML page, also during a run.

Everything is made from config.json and history.jsonl.
"""
