"""Fits to panels: differences, absorbed effects, and controls partialled out."""
