"""Hosts reached over SSH.

::

    options      what ssh_config and the command line say about a host -> HostOptions
    known_hosts  is this the key of the host?
    login        public keys from files and from the agent
    connection   TCP, gateway or ProxyCommand -> an authenticated connection that runs commands
    process      a command on a host: its bytes, its stderr, its exit status
    relay        ports on the hosts that lead to a socket of this machine
    fleet        all hosts of a launch, connected in parallel
    failures     one line for each way to fail: what, where, what to try

paramiko is used through its public interface only: `paramiko.Transport` with a socket-like object and a
`Packetizer` of ours, both documented parameters. fabric is not imported: its ``Connection`` accepts any host
key, its ``run`` polls, and it reads the same ssh_config through paramiko. The host key is checked after the
key exchange and before any login.

Each command has one thread, which moves bytes between its channel and a socketpair; the caller sees only the
socket. Nothing of ours sends in paramiko's own thread: while keys are renewed, that thread must receive.
"""
