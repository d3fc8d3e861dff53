"""The host's end of ``--sync`` and ``--collect``: a bounded cache of contents, and trees made of them.

::

    ~/.cache/tf-launcher/        (or below $XDG_CACHE_HOME)
      lock                       shared by whoever uses the cache; whoever has it alone may clean up
      place.lock                 one at a time puts trees in their places
      blobs/ab/cdef...           contents, named by their digests; at most 1.5 GiB, the least recently used go
      tmp/                       what is half done
      work/JOB/FOLDER            trees of a run, removed at its end
      work/.JOB                  what is known about them
      spare/...                  trees of runs that are over, at most 512 MiB: their files are used again

Each errand here is a function of its own: `receive.sync`, `give.collect`, `work.finish`.
"""
