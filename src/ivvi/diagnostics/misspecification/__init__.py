"""Signs in the rows of a log that a fit is wrong: its features, its timing or its data."""
