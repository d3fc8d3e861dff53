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

`feed.state` decides, `feed.feeder` does: threads of each connection tell the state what has happened, and do
what it commands. `FeedState` and what it is made of (`Call`, `Partition`, `Task`, `FeedLink`) are pure.
"""
