"""What people look at: tables, and later figures and a page. It reads only the history."""
