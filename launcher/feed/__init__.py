"""Rows from the driving program to the tasks of its job, and results back.

`launcher.feed` is the program's side. `launcher.feed.remote` travels to the tasks, and uses only Python 3.8
and the standard library. No row may be lost, and none may reach two tasks unless one of them is lost.

`launcher.api` uses these, and nothing else of the two packages:

==================================  ==========================================================================
`feed.feeder`                       `Feeder`: all feeds of a cluster
`feed.listener`                     `Listener`: accepts the tasks that have the key of the job. `FeedPeer`:
                                    one such task
`feed.sources`, `feed.files`        `rows`, `partitions`, `TextFiles`, `CsvFiles`, `TFRecordFiles`,
                                    `ParquetFiles`
`feed.outputs`                      `output_folder`: where tasks store the results of an inference as files
`feed.remote.connect`               `DriverRoutes`, `ConnectError`, `read_exactly`: a task's connection
`feed.remote.data_feed`             `DataFeed`, `dataset`, `end_all`: the rows in the task
`feed.remote.code`                  `by_value`: pickles the program's own modules as code
==================================  ==========================================================================

These are the words for rows on their way, from the user's program to a function in a task:

=========  ===================================================================================================
piece      A part of the user's data, and how its rows are read (`Piece`). It is fed as one partition.
partition  Rows that one task receives. If that task is lost, another one receives all of them. A `Partition`
           is a piece, together with how many of its rows the task has taken.
group      Rows that come from the user one by one, gathered until they make a piece.
round      With equal batches, a block for each task. Each block is a partition.
chunk      The part of a partition that is sent at once: some rows, encoded, or the code that returns all of
           them. A task reports by the numbers of chunks what it has consumed.
block      Rows in one Python object: a list, an array, or a tuple or dict of arrays (`feed.remote.codec`).
buffer     The bytes of an encoded block: its pickle, or the memory of one of its arrays.
frame      What passes a connection at once: a kind and buffers (`feed.remote.frames`). It contains a chunk,
           results or a message.
batch      The rows that a function asks for at once. They may belong to several chunks.
=========  ===================================================================================================

`feed.state` decides, and `feed.feeder` acts: the threads of each connection tell the state what has happened,
and do what it commands. `FeedState` and its parts (`Call`, `Partition`, `FedTask`, `FeedLink`) are pure: they
use no thread, socket or clock.
"""
