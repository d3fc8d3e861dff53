"""``launch prepare``: the same Python environment on every host.

::

    prepare   checks the packages that the user wants; finds exact versions of them, by uv; gives each host
              the versions that it asks for; downloads wheels, by pip, and sends them, by fabric
    remote    runs on each host: looks, decides what it needs, installs, publishes, removes

On a host, environments are below ``${XDG_DATA_HOME:-~/.local/share}/tf-launcher/environments/``::

    NAME -> HASH-py3.11.RANDOM    a link, replaced in one step
    HASH-py3.11.RANDOM/           a virtual environment
        bin/python                its Python
        environment.json          what it has; written last: without it the folder is half an environment;
                                  its time of modification is that of the last use by a task
    .lock                         held by the one prepare that builds or removes
"""
