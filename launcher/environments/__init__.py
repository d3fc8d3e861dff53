"""``launch prepare``: makes the same Python environment on every host.

::

    prepare   checks the packages that the user wants; finds exact versions of them, by uv; tells each host
              the versions that it asks for; downloads wheels, by pip, and sends them, by fabric
    remote    runs on each host: inspects it, decides what it needs, installs, publishes, removes

On a host, environments are below ``${XDG_DATA_HOME:-~/.local/share}/tf-launcher/environments/``::

    NAME -> HASH-py3.11.RANDOM    a link, replaced in one step
    HASH-py3.11.RANDOM/           a virtual environment
        bin/python                its Python
        environment.json          its manifest, written last: without it the environment is incomplete;
                                  its time of modification is that of the last use by a task
    .lock                         held by the one prepare that builds or removes
"""
