"""Files that travel with a job: to the hosts before it (``--sync``), and back after it (``--collect``).

=================================================  ========================================================
`requests.parse_syncs`, `requests.parse_collects`  options as written -> requests
`walk.look`                                        look at the folders, before any host is connected
`sync.sync`                                        copy them to all hosts; returns where the tasks run
`sync.make_outputs`                                make a folder for each task (``--output-dirs``)
`collect.collect`                                  copy what the tasks made
`sync.finish`                                      remove the run's folders from the hosts
`session.Progress`                                 the bar, or the lines, for the user
=================================================  ========================================================

The remote commands at the other end are in `launcher.agent.files`, the messages in `launcher.protocol.FILES`.
"""
