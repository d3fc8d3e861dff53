"""The task's side of the feed: what travels to tasks. Python 3.8, standard library only."""
