"""The Python clients; applications use `deodar.connect` and `deodar.aio.connect`."""
