"""What a recording is. Pure: no sockets, no test runner, no HTTP client."""
