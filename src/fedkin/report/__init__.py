"""What people look at: tables, figures for papers, and one page, live too. It reads only the history."""
