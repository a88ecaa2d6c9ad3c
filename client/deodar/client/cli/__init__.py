"""The `deodar` command; one command a file, `main.py` has the list."""
