"""Files that travel with a job: to the hosts before it, and back after it.

::

    requests ──> pack (walk, ignore, hashes) ──> sync ──> ... the job ... ──> collect ──> finish
                                                  │                             │
                                                parcels, talk                 landing, talk

What runs on the hosts is `launcher.agent.store`; what both ends agree on, `launcher.model.luggage`. Take the
names below from their own modules: `requests` is light, the others are imported when something travels.

==============================================  ==============================================================
`launcher.luggage.requests.parse_syncs`         ``--sync`` as written -> requests
`launcher.luggage.packing.pack`                 look at the folders, before any host is there
`launcher.luggage.sync.sync`                    bring them to all hosts; tells where the tasks run
`launcher.luggage.packing.left_out`             what the ignore rules kept here, in words
`launcher.luggage.requests.parse_collects`      ``--collect`` as written -> requests
`launcher.luggage.sharing.sharing_remark`       whose results are one file, as they share a folder
`launcher.luggage.requests.wanted_of`           what to fetch for each task
`launcher.luggage.collect.collect`              fetch it
`launcher.luggage.sync.finish`                  remove the run's folders from the hosts
`launcher.luggage.progress.shown`               the bar, or the lines, for a stream
==============================================  ==============================================================
"""
