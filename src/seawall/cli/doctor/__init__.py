"""`seawall doctor`: the command, and the checks of machine and software that it runs."""
