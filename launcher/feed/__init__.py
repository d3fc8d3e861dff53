"""Rows from the driving program to the tasks of its job, and results back.

`launcher.feed` is the driver's side; `launcher.feed.remote` travels to the tasks (Python 3.8,
standard library only).
`launcher.api` uses these, and nothing else of the two packages:

==================================  ==========================================================================
`feed.feeder`                       `Feeder`: all feeds of a cluster (`add`, `on_lost`, `fail`, `train`,
                                    `inference`, `finish`, `close`)
`feed.listener`                     `Listener`: accepts the tasks that have the job's key; `FeedPeer`: one
`feed.sources`, `feed.files`        `rows`, `partitions`; `TextFiles`, `CsvFiles`, `TFRecordFiles`
`feed.remote.connect`               `DriverRoutes`, `ConnectError`, `read_exactly`: a task's connection
`feed.remote.data_feed`             `DataFeed`, `dataset`, `end_all`
`feed.remote.code`                  `by_value`: pickle the program's own modules as code
==================================  ==========================================================================

The words for rows on their way, from the user's program to a function in a task:

=========  ===================================================================================================
piece      a part of the user's data, and how its rows are read (`Piece`); it is fed as one partition
partition  rows that one task gets, and as a whole another one if that task is lost. A `Partition` is a piece,
           with how far its task is
group      rows of the user that come one by one, gathered until they make a piece
round      with equal batches: a block for each task, each of which is a partition
chunk      what is sent of a partition at once: some rows, encoded, or the code that returns all of them. A
           task reports by the numbers of chunks what it has consumed
block      rows in one Python object: a list, an array, a tuple or dict of arrays (`feed.remote.codec`)
buffer     bytes of an encoded block: its pickle, or the memory of one of its arrays
frame      what passes a connection at once: a kind and buffers (`feed.remote.frames`). It has a chunk,
           results or a message
batch      the rows that a function asks for at once; they may be of several chunks
=========  ===================================================================================================

`feed.state` decides, `feed.feeder` does: threads of each connection tell the state what has happened, and do
what it commands. `FeedState` and what it is made of (`Call`, `Partition`, `FedTask`, `FeedLink`) are pure.
"""
