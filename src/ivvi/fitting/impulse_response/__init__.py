"""Impulse responses: how long the effect of an action lasts, by projections and by the model."""
