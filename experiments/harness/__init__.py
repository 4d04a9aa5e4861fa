"""Code shared by all tasks: settings, methods, runs, results, figures and tracking."""
