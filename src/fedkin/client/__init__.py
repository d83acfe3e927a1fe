"""What clients do with their own data: training, evaluation, single gradient steps."""
