"""The network client: `seawall.connect("seawall://host:1992")` opens a log on a server, with the embedded log's API."""
