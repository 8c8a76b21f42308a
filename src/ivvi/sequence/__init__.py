"""Checks that only a sequence allows: the order of a log's rows against the instrument and W."""
