"""Files at URLs: ``hdfs://``, ``s3://``, ``gs://`` and others, by fsspec and the packages below it.

The modules travel to tasks, so they run on Python 3.8::

    urls     what a URL says, for messages and checks
    store    finds, reads and writes files

fsspec must be imported only when a URL is used, and only in the process that uses it: the packages below it
have threads, and a process that forks later may hang.
"""
