"""Constraints for serving engines: one token and one packed mask at a time."""
