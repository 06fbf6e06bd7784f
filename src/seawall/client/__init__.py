"""The client: `seawall.connect("seawall://host:1992")`, a log behind a server, with the words of the embedded one."""
