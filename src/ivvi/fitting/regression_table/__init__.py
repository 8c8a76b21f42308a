"""Fits side by side, as a paper prints them."""
