"""Text to SQL (`+task=sql`): questions to databases, with answers checked by SQLite."""
