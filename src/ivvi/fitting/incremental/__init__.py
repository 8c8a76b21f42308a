"""Fits that grow: sums in files, deliveries of rows, updates of a saved model."""
