"""`python -m seawall` is the same as the `seawall` command."""

from seawall.cli.main import main

if __name__ == "__main__":
    main()
