"""What is about the machine, not about constraints: whole files, threads that share work."""
