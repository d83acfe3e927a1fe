"""What clients do with their own data: training, evaluation and single gradient steps."""
