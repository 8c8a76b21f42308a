"""Inference that a weak instrument cannot spoil: Anderson-Rubin, CLR, tF, wild bootstrap."""
