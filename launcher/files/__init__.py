"""Files that travel with a job: to the hosts before it (``--sync``), and back after it (``--collect``).

::

    requests -> look -> sync -> ... the job ... -> collect -> finish

The remote commands at the other end are in `launcher.agent.files`, the messages in `launcher.protocol.FILES`.

=================================================  ========================================================
`requests.parse_syncs`, `requests.parse_collects`  options as written -> requests
`walk.look`                                        look at the folders, before any host is connected
`sync.sync`                                        bring them to all hosts; returns where the tasks run
`sync.make_outputs`                                make a folder for each task (``--output-dirs``)
`requests.items_of`                               what to fetch for each task
`collect.collect`                                  fetch it
`sync.finish`                                      remove the run's folders from the hosts
`progress.shown`                                   the bar, or the lines, for a stream
=================================================  ========================================================
"""
