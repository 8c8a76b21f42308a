"""Tables as they are stored: readers that give record batches, and text read as numbers."""
