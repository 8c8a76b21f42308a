"""Policies: what `plan` returns, and how one is saved, loaded, told and served."""
