"""The page of a run: `launch page` serves it."""
