"""Inference that is valid with weak instruments: Anderson-Rubin, CLR, tF, wild bootstrap."""
