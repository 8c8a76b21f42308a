"""Instruments that groups set: leave-one-out means, and who shares an instrument."""
