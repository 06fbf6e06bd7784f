"""One definition for each system: how its server is found, set up and started."""
