"""Files: written completely or not at all, checkpoints, records, figures, compiled programs."""
