"""The harness is what every task shares: settings, methods, runs, results, figures, tracking."""
