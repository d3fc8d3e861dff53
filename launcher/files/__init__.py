"""Files copied to the hosts before a job (``--sync``) and from the hosts after it (``--collect``).

=================================================  =========================================================
`requests.parse_syncs`, `requests.parse_collects`  options as written -> requests
`walk.read_trees`                                  list the folders, before any host is connected
`transfer.sync`                                    copy them to all hosts, and make folders for results
`transfer.collect`                                 copy the files of tasks from their hosts
`transfer.finish`                                  remove the run's folders from the hosts
`transfer.FileTransfer`                            remote commands on many hosts, progress, the time limit
=================================================  =========================================================

The remote commands are in `launcher.agent.files`, the messages in `launcher.common.protocol.FILE_RECORDS`.
"""
