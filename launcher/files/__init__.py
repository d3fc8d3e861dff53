"""Files that are copied to the hosts before a job (``--sync``) and from the hosts after it (``--collect``).

A launch calls these functions in this order:

=================================================  =========================================================
`requests.parse_syncs`, `requests.parse_collects`  parse the options into requests
`walk.read_trees`                                  list the folders, before any host is connected
`transfer.sync`                                    copy them to all hosts, and make folders for results
`transfer.collect`                                 copy the files of tasks from their hosts
`transfer.finish`                                  remove the folders of the run from the hosts
=================================================  =========================================================

The remote commands are in `launcher.agent.files`, the messages in `launcher.common.protocol.FILE_RECORDS`.
"""
