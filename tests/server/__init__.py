"""The app as it runs: a real server, its processes and its files, driven over HTTP and WebSocket."""
