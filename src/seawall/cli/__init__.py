"""The `seawall` command. Each command loads only what it needs, so that a small command stays quick."""
