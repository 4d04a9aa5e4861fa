"""What every task shares: configuration, run directories, results, figures, tracking, processes."""
