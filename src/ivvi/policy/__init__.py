"""Policies: what `plan` returns, and how a policy is saved, loaded, described and served."""
