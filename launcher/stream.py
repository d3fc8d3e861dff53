"""A byte stream that survives the connections under it."""
