"""One launch, from its options to its exit code: connect, stage files, orchestrate, collect, report.

The command line and the Python API call it. `session` is the place to start: it tells a launch from top to
bottom. What the events of a job mean is not decided here, but by `launcher.supervisor`.

::

    build_options     settings -> options, by job_spec and option_faults
    session           the steps of a launch; detach leaves the launcher in the background, submit in a queue
    programs          looks for the programs of the tasks
    requested_files   what --sync, --collect and --output-dirs ask for; staged_files copies
    orchestrator      runs the job over host_connections
    control           answers launch ps, attach and restart
    interrupts        the signals that stop a launch
    reports           the reports that the supervisor does not make: of a launch that an error ends, and of
                      an earlier launcher of the run

The orchestrator and the display are imported while the agents start, because both take time.
"""
