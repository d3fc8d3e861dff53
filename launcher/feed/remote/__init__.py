"""The task's side of the feed: what travels to tasks. Python 3.8, standard library only.

A frame from the driver has a chunk. `codec` makes it a block of rows, or several if the chunk is code.
`data_feed` cuts batches from blocks. `launcher.feed` explains these words.
"""
