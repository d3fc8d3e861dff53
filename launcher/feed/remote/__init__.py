"""The task's side of the feed, which travels to tasks. It uses only Python 3.8 and the standard library.

A frame from the program contains a chunk. `codec` turns it into a block of rows, or into several if the chunk
is code. `data_feed` cuts batches from blocks. `outputs` makes files of results. `launcher.feed` explains
these words.
"""
