"""The processes of this machine: who runs, a signal to exactly the one meant, and the end of what was left.

What an agent needs to end its tasks is needed elsewhere too, where there is no agent any more: by a transport
whose agent was killed, by ``launch ps`` and ``launch stop``. It travels to the hosts, as the agent does: only
the standard library, only Python 3.8.
"""
