"""What servers and clients both need: no I/O, no threads, no clocks."""
