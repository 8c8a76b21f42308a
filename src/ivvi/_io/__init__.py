"""Files: written whole or not at all, checkpoints, records, figures, compiled programs."""
