"""What the rows of a log say against a fit: its features, its timing, its data."""
