"""Other machines, over SSH: one connection a host, on fabric and paramiko, imported only when used."""
