"""The columns of a log: how they are named, and how numbers are made of them."""
